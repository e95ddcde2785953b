# SPDX-License-Identifier: Apache-2.0
"""What a Python worker process is told: read from the fields of an operator and from the pickled functions of its plan.

Functions that could tell that Spark does not run them are refused, with the reason.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Call, Expression, canonicalize
from volley.plan.python_nodes import EvalType, PythonCall, PythonProcess, PythonProgram
from volley.plan.types import StructField
from volley.spark_versions.registry import current

_PROFILER = "spark.sql.pyspark.udf.profiler"
_LOGGING = "spark.sql.pyspark.worker.logging.enabled"
_DAEMON_MODULE = "spark.python.daemon.module"
_WORKER_MODULE = "spark.python.worker.module"
_USE_DAEMON = "spark.python.use.daemon"
_REUSE = "spark.python.worker.reuse"
_ENCRYPTION = "spark.io.encryption.enabled"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BUFFER = "spark.sql.execution.python.udf.buffer.size"
_PANDAS_BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
_IDLE_TIMEOUT = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
_WORKER_IDLE_TIMEOUT = "spark.python.worker.idleTimeoutSeconds"
_EXECUTABLE = "spark.sql.execution.pyspark.python"
_MEMORY = "spark.executor.pyspark.memory"
_THREADS = "spark.executorEnv.OMP_NUM_THREADS"
_BATCH_SIZE = "spark.sql.execution.python.udf.maxRecordsPerBatch"

PYTHON_SETTINGS = (
    "spark.app.id",
    _PROFILER,
    _LOGGING,
    _DAEMON_MODULE,
    _WORKER_MODULE,
    _USE_DAEMON,
    _REUSE,
    _ENCRYPTION,
    _BATCH_ROWS,
    _BATCH_BYTES,
    _BUFFER,
    _PANDAS_BUFFER,
    _IDLE_TIMEOUT,
    _WORKER_IDLE_TIMEOUT,
    _EXECUTABLE,
    _MEMORY,
    _THREADS,
    _BATCH_SIZE,
)
"""Settings of the session that the operators are read with."""

_SEEN_IN_FUNCTIONS = {
    b"_deserialize_accumulator": "a function updates an accumulator",
    b"TaskContext": "a function asks for the TaskContext of Spark's task",
}
"""Names that a pickled function contains if it uses what only a task of Spark has."""


_RESULTS = 2000

# A pickled function with its return type is larger, a pickled reference to a broadcast variable smaller.
_SMALLEST_FUNCTION = 200

# Functions of single rows that are sent as Arrow, and the settings that convert them by way of pandas.
_BY_PANDAS = {
    EvalType.ARROW_BATCHED: "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled",
    EvalType.ARROW_TABLE: "spark.sql.legacy.execution.pythonUDTF.pandas.conversion.enabled",
}

_SIZE = re.compile(r"(-?\d+)\s*([bkmgt]i?b?)?")


Functions = list[dict[str, Any]]
"""Pickled functions, by number, each with what its process needs."""


class Refused(Exception):
    """Why Spark has to run the functions."""


class ProgramInputs:
    """The columns that the worker reads: each distinct argument once."""

    def __init__(self) -> None:
        self.expressions: list[Expression] = []
        self._places: dict[Expression, int] = {}

    @property
    def columns(self) -> tuple[StructField, ...]:
        return tuple(StructField(f"_{n}", item.type, True) for n, item in enumerate(self.expressions))

    def place(self, argument: Expression) -> int:
        place = self._places.setdefault(canonicalize(argument), len(self.expressions))
        if place == len(self.expressions):
            self.expressions.append(argument)
        return place


def read_call(call: Call, functions: Functions, inputs: ProgramInputs) -> PythonCall:
    commands: list[bytes] = []
    name = str(call.option("name"))
    while True:
        if call.option("udfDeterministic") is not True:
            raise Refused("a function is declared nondeterministic")
        commands.insert(0, read_command(function_of(call, functions)))
        match call.arguments:
            case (Call("PythonUDF") as inner,):
                call = inner
            case arguments:
                break
    return PythonCall(name, tuple(commands), tuple(read_argument(item, inputs) for item in arguments))


def read_command(function: dict[str, Any]) -> bytes:
    """The pickled function. Raises Refused if it uses what only a task of Spark has."""
    command = base64.b64decode(function["command"])
    for pickle in pickles_of(command, function):
        for mark, detail in _SEEN_IN_FUNCTIONS.items():
            if mark in pickle:
                raise Refused(detail)
    return command


def pickles_of(command: bytes, function: dict[str, Any]) -> list[bytes]:
    """The pickles in which a function is. PySpark broadcasts a large one: the command is then only a name."""
    if len(command) < _SMALLEST_FUNCTION and function["broadcasts"]:
        return [Path(path).read_bytes() for _, path in function["broadcasts"]]
    return [command]


def read_argument(argument: Expression, inputs: ProgramInputs) -> tuple[int, str | None]:
    match argument:
        case Call("NamedArgumentExpression", (value,)):
            return inputs.place(value), str(argument.option("key"))
        case _:
            return inputs.place(argument), None


def functions_of(calls: tuple[Call, ...], functions: Functions) -> Iterator[dict[str, Any]]:
    """The functions that the calls consist of."""
    for call in calls:
        yield function_of(call, functions)
        yield from functions_of(tuple(filter(_is_function, call.arguments)), functions)


def _is_function(expression: Expression) -> TypeGuard[Call]:
    return isinstance(expression, Call) and expression.function == "PythonUDF"


def function_of(call: Call, functions: Functions) -> dict[str, Any]:
    number = call.option("func")
    if not isinstance(number, int):
        raise Refused("a function could not be read")
    return functions[number]


def read_program(
    operator: Operator,
    eval_type: object,
    calls: tuple[PythonCall, ...],
    columns: tuple[StructField, ...],
    used: Functions,
) -> PythonProgram:
    if not current().knows_python_workers:
        raise Refused(f"Spark {current().release} calls all Python functions itself")
    if not isinstance(eval_type, int) or eval_type not in set(EvalType):
        raise Refused(f"functions of PySpark's type {eval_type}")
    runner: dict[str, str] = operator.value("runner")
    by_pandas = _BY_PANDAS.get(EvalType(eval_type))
    if by_pandas and (not current().converts_without_pandas or runner.get(by_pandas) == "true"):
        # A NULL makes floats of all integers of its batch.
        raise Refused("Spark converts their arguments by way of pandas, batch by batch")
    settings: dict[str, str] = operator.value("settings")
    _check_settings(settings)
    return PythonProgram(
        EvalType(eval_type),
        calls,
        columns,
        tuple(sorted(runner.items())),
        max(0, int(settings[_BATCH_ROWS])),
        # Spark 4.0 has no such limit.
        _size(settings.get(_BATCH_BYTES, "0"), "b"),
        _process(operator, settings, used),
    )


def _check_settings(settings: dict[str, str]) -> None:
    if settings.get(_PROFILER):
        raise Refused(f"{_PROFILER} is set")
    if settings.get(_LOGGING) == "true":
        raise Refused(f"{_LOGGING} is set")
    if settings.get(_DAEMON_MODULE) or settings.get(_WORKER_MODULE) or settings.get(_USE_DAEMON) == "false":
        raise Refused("spark.python settings replace PySpark's daemon or worker")
    for timeout in (_IDLE_TIMEOUT, _WORKER_IDLE_TIMEOUT):
        if settings.get(timeout, "0").rstrip("ms") != "0":
            raise Refused(f"{timeout} is set")


def _process(operator: Operator, settings: dict[str, str], used: Functions) -> PythonProcess:
    first = used[0]
    memory = settings.get(_MEMORY)
    broadcasts = {number: path for function in used for number, path in function["broadcasts"]}
    if broadcasts and settings.get(_ENCRYPTION) == "true":
        raise Refused("broadcast variables are encrypted")
    variables: dict[str, str] = dict(first["variables"])
    if _THREADS not in settings:
        variables["OMP_NUM_THREADS"] = "1"
    variables |= {
        "SPARK_BUFFER_SIZE": settings.get(_PANDAS_BUFFER) or settings.get(_BUFFER) or "65536",
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_JOB_ARTIFACT_UUID": "default",
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        # How many results come together, which a function cannot tell.
        "PYTHON_UDF_BATCH_SIZE": str(max(_RESULTS, int(settings.get(_BATCH_SIZE, "100")))),
        "PYTHONUNBUFFERED": "YES",
    }
    return PythonProcess(
        application=settings["spark.app.id"],
        executable=settings.get(_EXECUTABLE) or first["executable"],
        version=first["version"],
        variables=tuple(sorted(variables.items())),
        files_directory=operator.value("files"),
        includes=tuple(dict.fromkeys(path for function in used for path in function["includes"])),
        broadcasts=tuple(sorted(broadcasts.items())),
        memory_mb=None if not memory else max(1, _size(memory, "m") // 2**20),
        reused=settings.get(_REUSE, "true") == "true",
    )


def check_sent_size(process: PythonProcess, limit_bytes: int) -> None:
    """Raises Refused if the files that a process needs are larger than may be sent to a worker."""
    files = [Path(path) for _, path in process.broadcasts]
    for root, _, names in os.walk(process.files_directory):
        files += [Path(root, name) for name in names]
    try:
        size_bytes = sum(path.lstat().st_size for path in files)
    except OSError as error:
        raise Refused(f"a broadcast variable or an added file cannot be read: {error}") from error
    if size_bytes > limit_bytes:
        raise Refused(
            f"broadcast variables and added files have {size_bytes} bytes, "
            f"and spark.volley.pythonFunctions.maxFiles lets {limit_bytes} be sent"
        )


_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _size(text: str, unit: str) -> int:
    """A size as Spark writes it (`512m`, `1gb`), in bytes; a number without a unit is in `unit`. -1: no limit."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise Refused(f"{text} is not a size")
    return max(0, int(found[1])) * _UNITS[(found[2] or unit)[0]]
