# SPDX-License-Identifier: Apache-2.0
"""The protocol that Spark's JVM speaks with a Python worker, from the JVM's side.

    to the worker     INIT, length, message     then rows                        then END_OF_STREAM
    from the worker   ARROW_STREAM, rows        then TIMING, metrics, ...        then END_OF_STREAM
                      or EXCEPTION, traceback at any of these places

`pyspark.worker_message` reads the message. Before Spark 4.3 it has neither INIT nor a length. Before 4.2 a worker reads
it value by value, and which values there are depends on the kind of function. Integers are big-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

from volley.errors import DataError, PythonWorkerLost
from volley.plan.python_nodes import EvalType, PythonCall, PythonProgram, PythonTableFunction
from volley.plan.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    OpaqueType,
    SimpleType,
    StructField,
    StructType,
)
from volley.spark_versions.registry import current
from volley.worker.python.row_functions import ARROW_ROWS
from volley.worker.python.writer import Writer

END_OF_DATA = -1
EXCEPTION = -2
TIMING = -3
END_OF_STREAM = -4
ARROW_STREAM = -6
INIT = -8

# After its timings a worker reports the bytes that it spilled from memory and to disk.
_SPILLED_COUNTS = 2
_LONG_BYTES = 8
_TABLE_ARGUMENTS = "table_arg_offsets"

# Before Spark 4.2, the arguments of these have no names.
_WITHOUT_NAMES = frozenset(
    {
        EvalType.GROUPED_MAP_PANDAS,
        EvalType.MAP_PANDAS_ITER,
        EvalType.COGROUPED_MAP_PANDAS,
        EvalType.MAP_ARROW_ITER,
        EvalType.GROUPED_MAP_ARROW,
        EvalType.COGROUPED_MAP_ARROW,
        EvalType.GROUPED_MAP_ARROW_ITER,
        EvalType.GROUPED_MAP_PANDAS_ITER,
    }
)


@dataclass(frozen=True)
class TaskIdentity:
    """What a worker is told of its task: its stage, and a number for its stream of rows in that stage.

    No function sees it: see `daemon_program`.
    """

    stage: int
    partition: int
    attempt: int


def init_message(
    program: PythonProgram, task: TaskIdentity, broadcasts: Iterable[tuple[int, str | None]]
) -> bytes:
    """What a worker is told before it gets rows. `broadcasts` are new variables, or known ones to forget (None)."""
    out = Writer()
    out.integer(task.partition)
    out.text(program.process.version)
    if current().has_worker_message:
        out.text(json.dumps(_task_context(task)))
    else:
        _write_task_context(task, out)
    out.text(program.process.files_directory)
    out.integer(len(program.process.includes))
    for path in program.process.includes:
        out.text(path)
    out.boolean(False)  # broadcast files are not encrypted
    changes = list(broadcasts)
    out.integer(len(changes))
    for number, path_of in changes:
        if path_of is None:
            out.long(-number - 1)
        else:
            out.long(number)
            out.text(path_of)
    out.integer(program.eval_type)
    if current().has_worker_message:
        out.mapping(dict(program.settings))
        out.mapping(_eval_conf(program))
    else:
        _write_settings(program, out)
    if program.table_function is None:
        _write_calls(program, out)
    else:
        _write_table_function(program.calls[0], program.table_function, out)
    message = out.bytes()
    if not current().has_init_frame:
        return message
    return struct.pack(">ii", INIT, len(message)) + message


def _write_calls(program: PythonProgram, out: Writer) -> None:
    has_message = current().has_worker_message
    if not has_message:
        out.boolean(False)  # no profiles are made
    out.integer(len(program.calls))
    for call in program.calls:
        if has_message or program.eval_type not in _WITHOUT_NAMES:
            _write_arguments(call, out)
        else:
            out.integer(len(call.arguments))
            for place, _ in call.arguments:
                out.integer(place)
        out.integer(len(call.commands))
        for command in call.commands:
            out.block(command)
        if has_message:
            out.long(0)  # names the call in profiles


def _write_table_function(call: PythonCall, function: PythonTableFunction, out: Writer) -> None:
    _write_arguments(call, out)
    out.integer(len(function.partition_columns))
    for place in function.partition_columns:
        out.integer(place)
    out.boolean(function.analyzed is not None)
    if function.analyzed is not None:
        out.block(function.analyzed)
    (command,) = call.commands
    out.block(command)
    out.text(json.dumps(spark_json(function.returns)))
    out.text(call.name)


def _write_arguments(call: PythonCall, out: Writer) -> None:
    out.integer(len(call.arguments))
    for place, name in call.arguments:
        out.integer(place)
        out.boolean(name is not None)
        if name is not None:
            out.text(name)


def _task_context(task: TaskIdentity) -> dict[str, Any]:
    return {
        "isBarrier": False,
        "connInfo": -1,
        "secret": "",
        "stageId": task.stage,
        "partitionId": task.partition,
        "attemptNumber": task.attempt,
        "taskAttemptId": task.partition,
        "cpus": 1,
        "cpuAmount": "1",
        "resources": {},
        "localProperties": {},
    }


def _write_task_context(task: TaskIdentity, out: Writer) -> None:
    """As `_task_context`, for the workers that read no JSON."""
    out.boolean(False)  # no barrier
    if current().worker_reads_barrier:
        out.integer(0)
        out.text("")
    for value in (task.stage, task.partition, task.attempt):
        out.integer(value)
    out.long(task.partition)  # names the attempt
    out.integer(1)  # core
    out.integer(0)  # resources
    out.integer(0)  # local properties


def _write_settings(program: PythonProgram, out: Writer) -> None:
    """As both mappings, for the workers that read only what their kind of function needs."""
    if program.eval_type in (EvalType.BATCHED, EvalType.TABLE):
        return
    out.mapping(dict(program.settings))
    for name, value in _eval_conf(program).items():
        if name == _TABLE_ARGUMENTS:
            places = program.table_function.table_arguments if program.table_function else ()
            out.integer(len(places))
            for place in places:
                out.integer(place)
        else:
            out.text(value)


def _eval_conf(program: PythonProgram) -> dict[str, str]:
    given_types = program.eval_type in (EvalType.ARROW_BATCHED, EvalType.ARROW_TABLE)
    if given_types or program.setting(ARROW_ROWS):
        return {"input_type": json.dumps(spark_json(StructType(program.columns)))}
    if program.eval_type is EvalType.ARROW_UDTF and program.table_function is not None:
        return {_TABLE_ARGUMENTS: ",".join(map(str, program.table_function.table_arguments))}
    return {}


def spark_json(data_type: DataType) -> Any:
    """A type as Spark writes it in JSON."""
    match data_type:
        case SimpleType(name) | OpaqueType(name):
            return name
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case ArrayType(element, contains_null):
            return {"type": "array", "elementType": spark_json(element), "containsNull": contains_null}
        case MapType(key, value, contains_null):
            return {
                "type": "map",
                "keyType": spark_json(key),
                "valueType": spark_json(value),
                "valueContainsNull": contains_null,
            }
        case StructType(fields):
            return {"type": "struct", "fields": [_spark_field(field) for field in fields]}
        case _:
            raise TypeError(f"{data_type} is not carried; the support table must refuse it first")


def _spark_field(field: StructField) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": spark_json(field.type),
        "nullable": field.nullable,
        "metadata": {},
    }


# ------------------------------------------------------------------------------------------- answers


def read_integer(source: BinaryIO) -> int:
    return int(struct.unpack(">i", read_exactly(source, 4))[0])


def read_exactly(source: BinaryIO, size: int) -> bytes:
    """Raises PythonWorkerLost if the worker has ended."""
    found = source.read(size)
    if len(found) < size:
        raise PythonWorkerLost("Python worker exited unexpectedly (crashed).")
    return found


def read_end(source: BinaryIO, mark: int) -> bool:
    """Read what follows the rows; `mark` is its first integer. Returns whether the worker is ready for another task.

    It is not if its function has not read all rows: then it ends.
    """
    while mark == TIMING:
        read_exactly(source, (current().worker_times + _SPILLED_COUNTS) * _LONG_BYTES)
        mark = read_integer(source)
    raise_exception(source, mark)
    if mark != END_OF_DATA:
        raise PythonWorkerLost(f"a Python worker sent {mark} where its metrics end.")
    if read_integer(source) != 0:
        # Spark adds the updates of successful tasks only. Here an attempt may be repeated and would count twice.
        raise DataError("a Python function updated an accumulator, or asked for its TaskContext.")
    mark = read_integer(source)
    if mark not in (END_OF_STREAM, END_OF_DATA):
        raise PythonWorkerLost(f"a Python worker sent {mark} at its end.")
    return mark == END_OF_STREAM


def raise_exception(source: BinaryIO, mark: int) -> None:
    """Raise the exception of a function, if `mark` announces one.

    Spark then replays the query and raises its own error.
    """
    if mark == EXCEPTION:
        traceback = read_exactly(source, read_integer(source)).decode(errors="replace")
        raise DataError(f"a Python function raised an exception: {_last_line(traceback)}")


def _last_line(traceback: str) -> str:
    lines = traceback.strip().splitlines()
    return lines[-1] if lines else "no traceback"
