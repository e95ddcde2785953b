# SPDX-License-Identifier: Apache-2.0
"""Decodes the operators that call Python functions.

An operator becomes a native node only if its functions cannot tell that Spark does not run them. Otherwise it stays an
unknown operator, with the reason.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from volley.plan import own_ids
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import (
    AggregateCall,
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
    WindowCall,
    attribute_of,
    canonicalize,
)
from volley.plan.nodes import (
    Exchange,
    Filter,
    Limit,
    Node,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Unknown,
)
from volley.plan.python_nodes import (
    EvalType,
    PythonAggregate,
    PythonCall,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonProcess,
    PythonProgram,
    PythonWindow,
)
from volley.plan.types import INTEGER, DataType, StructField, StructType
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


# A pickled function with its return type is larger, a pickled reference to a broadcast variable smaller.
_SMALLEST_FUNCTION = 200

_SIZE = re.compile(r"(-?\d+)\s*([bkmgt]i?b?)?")


class _Refused(Exception):
    """Why Spark has to run the functions."""


_cogrouped = itertools.count(own_ids.COGROUPED)

Functions = list[dict[str, Any]]
PythonDecoder = Callable[[Operator, Functions], Node]


class PythonAccess(Enum):
    """Which functions the workers run."""

    NONE = "none"
    WITHOUT_FILES = "without files"
    """Those that need no file of the driver."""
    ALL = "all"


def decode_python(
    operator: Operator, functions: Functions, access: PythonAccess, gathered: Sequence[Node]
) -> Node:
    """The node of an operator in `PYTHON_DECODERS`. `functions` are the pickled functions of the plan, by number.

    The rows of the nodes in `gathered`, by identity, are in one partition because the program said `coalesce(1)`.
    """
    try:
        if not current().speaks_worker_protocol:
            raise _Refused(f"the Python workers of Spark {current().release} speak another protocol")
        if access is PythonAccess.NONE:
            raise _Refused("the workers do not run Python functions")
        if access is PythonAccess.WITHOUT_FILES and any(map(_needs_files, functions)):
            raise _Refused("broadcast variables or added files, which are on the driver's machine")
        node = PYTHON_DECODERS[operator.name](operator, functions)
        if isinstance(node, PythonMap) and _is_placed(node.child, gathered):
            return replace(node, single=True)
        return node
    except _Refused as refusal:
        return Unknown(operator.name, str(refusal), _output(operator), operator.children)


def _output(operator: Operator) -> tuple[Attribute, ...]:
    """The columns of the operator, which some of them do not have as a field."""
    fields = operator.expressions
    if "resultAttrs" in fields:
        return (*operator.children[0].output, *operator.all("resultAttrs"))
    if "windowExpression" in fields:
        return (*operator.children[0].output, *map(attribute_of, operator.all("windowExpression")))
    if "resultExpressions" in fields:
        return tuple(map(attribute_of, operator.all("resultExpressions")))
    found: tuple[Attribute, ...] = operator.all("output")
    return found


def _needs_files(function: dict[str, Any]) -> bool:
    return bool(function["broadcasts"] or function["includes"])


def _eval(operator: Operator, functions: Functions) -> Node:
    calls: tuple[Call, ...] = operator.all("udfs")
    results: tuple[Attribute, ...] = operator.all("resultAttrs")
    inputs = _Inputs()
    decoded = tuple(_call(call, functions, inputs) for call in calls)
    used = list(_used(calls, functions))
    # Rows that are pickled have an operator of their own.
    eval_type = operator.values.get("evalType", EvalType.BATCHED)
    program = _program(operator, eval_type, decoded, inputs.columns, used)
    return PythonEval(program, tuple(inputs.expressions), results, operator.children[0])


def _map(operator: Operator, functions: Functions) -> Node:
    call: Call = operator.one("func")
    child = operator.children[0]
    if operator.value("isBarrier") or operator.values.get("profile", "set") is not None:
        raise _Refused("a barrier or a resource profile")
    attributes = _attributes(call, child)
    columns = (StructField("struct", StructType(_fields(attributes)), True),)
    program = _one_call(operator, call, (0,), columns, functions)
    return PythonMap(program, attributes, operator.all("output"), False, child)


def _group_map(operator: Operator, functions: Functions) -> Node:
    call: Call = operator.one("func")
    child = operator.children[0]
    keys: tuple[Attribute, ...] = operator.all("groupingAttributes")
    data = tuple(item for item in call.arguments if isinstance(item, Attribute))
    shown = [attribute.id for attribute in data]
    if shown != [attribute.id for attribute in child.output[len(keys) :]]:
        raise _Refused("the columns of a group could not be read")
    # A key that is among the columns of the group is not sent twice.
    extra = tuple({key.id: key for key in keys if key.id not in shown}.values())
    places = {attribute.id: place for place, attribute in reversed(list(enumerate((*extra, *data))))}
    key_places = [places[key.id] for key in keys]
    data_places = range(len(extra), len(extra) + len(data))
    offsets = (len(keys) + len(data) + 1, len(keys), *key_places, *data_places)
    columns = _fields((*extra, *data))
    if operator.name == "FlatMapGroupsInArrowExec":
        columns = (StructField("struct", StructType(columns), True),)
    program = _one_call(operator, call, offsets, columns, functions)
    return PythonGroupMap(program, keys, (*extra, *data), operator.all("output"), child)


class _Side:
    """One side of a cogrouped map: its columns without duplicates, and where the function finds keys and data."""

    def __init__(self, keys: tuple[Attribute, ...], seen: tuple[Attribute, ...], child: Node) -> None:
        """`seen` are the columns as Catalyst knows them; of a frame on both sides, with the ids of the left one."""
        found = child.output[len(keys) :]
        if [(item.name, item.type) for item in seen] != [(item.name, item.type) for item in found]:
            raise _Refused("the columns of a group could not be read")
        data = tuple(replace(item, id=own.id) for item, own in zip(seen, found, strict=True))
        shown = [attribute.id for attribute in data]
        extra = tuple({key.id: key for key in keys if key.id not in shown}.values())
        self.child = child
        self.keys = keys
        self.columns = (*extra, *data)
        places = {attribute.id: place for place, attribute in reversed(list(enumerate(self.columns)))}
        data_places = range(len(extra), len(extra) + len(data))
        self.offsets = (len(keys) + len(data) + 1, len(keys), *(places[key.id] for key in keys), *data_places)


def _cogroup_map(operator: Operator, functions: Functions) -> Node:
    """Both sides become one input, of which each row has the columns of its own side and NULL for the others."""
    call: Call = operator.one("func")
    data = tuple(item for item in call.arguments if isinstance(item, Attribute))
    left_keys: tuple[Attribute, ...] = operator.all("leftGroup")
    right_keys: tuple[Attribute, ...] = operator.all("rightGroup")
    left_child, right_child = operator.children
    count = len(left_child.output) - len(left_keys)
    left = _Side(left_keys, data[:count], left_child)
    right = _Side(right_keys, data[count:], right_child)
    if [key.type for key in left_keys] != [key.type for key in right_keys]:
        raise _Refused("the keys of the two sides have different types")
    offsets = (*left.offsets, *right.offsets)
    program = _one_call(operator, call, offsets, _fields(left.columns), functions)
    side = _new_column("side", INTEGER)
    keys, left_columns, right_columns = (
        tuple(_new_column(column.name, column.type) for column in columns)
        for columns in (left_keys, left.columns, right.columns)
    )
    output = (side, *keys, *left_columns, *right_columns)

    def branch(number: int, here: _Side) -> Node:
        values: list[Expression] = [Literal(number, INTEGER), *here.keys]
        for other in (left, right):
            values += other.columns if other is here else [Literal(None, c.type) for c in other.columns]
        named = zip(output, values, strict=True)
        return Project(
            tuple(Alias(next(_cogrouped), column.name, value) for column, value in named), here.child
        )

    rows = Union(output, (branch(0, left), branch(1, right)))
    described = _fields(right.columns)
    return PythonCoGroupMap(
        program, described, keys, side, left_columns, right_columns, operator.all("output"), rows
    )


def _new_column(name: str, kind: DataType) -> Attribute:
    return Attribute(next(_cogrouped), name, kind)


def _aggregate(operator: Operator, functions: Functions) -> Node:
    aggregates: tuple[AggregateCall, ...] = operator.all("aggExpressions")
    if any(item.distinct or item.filter is not None for item in aggregates):
        raise _Refused("DISTINCT or FILTER")
    calls = tuple(item.function for item in aggregates)
    inputs = _Inputs()
    decoded = tuple(_call(call, functions, inputs) for call in calls)
    program = _program(
        operator, operator.value("evalType"), decoded, inputs.columns, list(_used(calls, functions))
    )
    results = tuple(Attribute(item.result_id, item.function.function, item.type) for item in aggregates)
    grouping = operator.all("groupingExpressions")
    node = PythonAggregate(program, grouping, tuple(inputs.expressions), results, operator.children[0])
    return Project(operator.all("resultExpressions"), node)


def _window(operator: Operator, functions: Functions) -> Node:
    columns: tuple[Alias, ...] = operator.all("windowExpression")
    calls = []
    for column in columns:
        match column:
            case Alias(_, _, WindowCall(function, _, _, frame)):
                if frame.lower is not None or frame.upper is not None:
                    raise _Refused("a window frame that is not the whole partition")
                calls.append(function.function if isinstance(function, AggregateCall) else function)
            case _:
                raise _Refused("a window expression could not be read")
    inputs = _Inputs()
    decoded = tuple(_call(call, functions, inputs) for call in calls)
    used = list(_used(tuple(calls), functions))
    program = _program(operator, operator.value("evalType"), decoded, inputs.columns, used)
    bounds = ("window_bound_types", ",".join(["unbounded"] * len(calls)))
    return PythonWindow(
        replace(program, settings=(*program.settings, bounds)),
        operator.all("partitionSpec"),
        operator.all("orderSpec"),
        tuple(inputs.expressions),
        tuple(attribute_of(column) for column in columns),
        operator.children[0],
    )


PYTHON_DECODERS: dict[str, PythonDecoder] = {
    "ArrowEvalPythonExec": _eval,
    "BatchEvalPythonExec": _eval,
    "MapInPandasExec": _map,
    "MapInArrowExec": _map,
    "FlatMapGroupsInPandasExec": _group_map,
    "FlatMapGroupsInArrowExec": _group_map,
    "FlatMapCoGroupsInPandasExec": _cogroup_map,
    "FlatMapCoGroupsInArrowExec": _cogroup_map,
    "ArrowAggregatePythonExec": _aggregate,
    "ArrowWindowPythonExec": _window,
}


def _attributes(call: Call, child: Node) -> tuple[Attribute, ...]:
    """The child's columns as Catalyst knows them: captured nodes do not know whether a column can be NULL."""
    found = tuple(item for item in call.arguments if isinstance(item, Attribute))
    if not found or [item.id for item in found] != [column.id for column in child.output]:
        raise _Refused("the columns of the input could not be read")
    return found


def _fields(attributes: tuple[Attribute, ...]) -> tuple[StructField, ...]:
    return tuple(StructField(item.name, item.type, item.nullable) for item in attributes)


def _is_placed(node: Node, gathered: Sequence[Node]) -> bool:
    """Whether rows were partitioned or sorted for what reads them, which sees that."""
    while isinstance(node, Project | Filter | PythonEval) and not any(node is one for one in gathered):
        node = node.child
    placed = (Partitioning.HASH, Partitioning.RANGE, Partitioning.SINGLE)
    if isinstance(node, Exchange):
        return node.partitioning in placed
    return isinstance(node, Sort | TopN | Limit) or any(node is one for one in gathered)


def _one_call(
    operator: Operator,
    call: Call,
    offsets: tuple[int, ...],
    columns: tuple[StructField, ...],
    functions: Functions,
) -> PythonProgram:
    """The program of an operator with one function, which gets what `offsets` say."""
    decoded = _call(replace(call, arguments=()), functions, _Inputs())
    decoded = replace(decoded, arguments=tuple((offset, None) for offset in offsets))
    used = [_function(call, functions)]
    return _program(operator, call.option("evalType"), (decoded,), columns, used)


class _Inputs:
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


def _call(call: Call, functions: Functions, inputs: _Inputs) -> PythonCall:
    commands: list[bytes] = []
    name = str(call.option("name"))
    while True:
        if call.option("udfDeterministic") is not True:
            raise _Refused("a function is declared nondeterministic")
        function = _function(call, functions)
        commands.insert(0, base64.b64decode(function["command"]))
        _check_function(commands[0], function)
        match call.arguments:
            case (Call("PythonUDF") as inner,):
                call = inner
            case arguments:
                break
    return PythonCall(name, tuple(commands), tuple(_argument(item, inputs) for item in arguments))


def _check_function(command: bytes, function: dict[str, Any]) -> None:
    # PySpark broadcasts a large function: the command is then only its name.
    is_broadcast = len(command) < _SMALLEST_FUNCTION and function["broadcasts"]
    pickles = [Path(path).read_bytes() for _, path in function["broadcasts"]] if is_broadcast else [command]
    for pickle in pickles:
        for mark, detail in _SEEN_IN_FUNCTIONS.items():
            if mark in pickle:
                raise _Refused(detail)


def _argument(argument: Expression, inputs: _Inputs) -> tuple[int, str | None]:
    match argument:
        case Call("NamedArgumentExpression", (value,)):
            return inputs.place(value), str(argument.option("key"))
        case _:
            return inputs.place(argument), None


def _used(calls: tuple[Call, ...], functions: Functions) -> Iterator[dict[str, Any]]:
    """The functions that the calls consist of."""
    for call in calls:
        yield _function(call, functions)
        yield from _used(tuple(filter(_is_function, call.arguments)), functions)


def _is_function(expression: Expression) -> TypeGuard[Call]:
    return isinstance(expression, Call) and expression.function == "PythonUDF"


def _function(call: Call, functions: Functions) -> dict[str, Any]:
    number = call.option("func")
    if not isinstance(number, int):
        raise _Refused("a function could not be read")
    return functions[number]


def _program(
    operator: Operator,
    eval_type: object,
    calls: tuple[PythonCall, ...],
    columns: tuple[StructField, ...],
    used: Functions,
) -> PythonProgram:
    if not isinstance(eval_type, int) or eval_type not in set(EvalType):
        raise _Refused(f"functions of PySpark's type {eval_type}")
    settings: dict[str, str] = operator.value("settings")
    _check_settings(settings)
    return PythonProgram(
        EvalType(eval_type),
        calls,
        columns,
        tuple(sorted(operator.value("runner").items())),
        max(0, int(settings[_BATCH_ROWS])),
        _size(settings[_BATCH_BYTES], "b"),
        _process(operator, settings, used),
    )


def _check_settings(settings: dict[str, str]) -> None:
    if settings.get(_PROFILER):
        raise _Refused(f"{_PROFILER} is set")
    if settings.get(_LOGGING) == "true":
        raise _Refused(f"{_LOGGING} is set")
    if settings.get(_DAEMON_MODULE) or settings.get(_WORKER_MODULE) or settings.get(_USE_DAEMON) == "false":
        raise _Refused("spark.python settings replace PySpark's daemon or worker")
    for timeout in (_IDLE_TIMEOUT, _WORKER_IDLE_TIMEOUT):
        if settings.get(timeout, "0").rstrip("ms") != "0":
            raise _Refused(f"{timeout} is set")


def _process(operator: Operator, settings: dict[str, str], used: Functions) -> PythonProcess:
    first = used[0]
    memory = settings.get(_MEMORY)
    broadcasts = {number: path for function in used for number, path in function["broadcasts"]}
    if broadcasts and settings.get(_ENCRYPTION) == "true":
        raise _Refused("broadcast variables are encrypted")
    variables: dict[str, str] = dict(first["variables"])
    if _THREADS not in settings:
        variables["OMP_NUM_THREADS"] = "1"
    variables |= {
        "SPARK_BUFFER_SIZE": settings.get(_PANDAS_BUFFER) or settings.get(_BUFFER) or "65536",
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_JOB_ARTIFACT_UUID": "default",
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        "PYTHON_UDF_BATCH_SIZE": settings.get(_BATCH_SIZE, "100"),
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


_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _size(text: str, unit: str) -> int:
    """A size as Spark writes it (`512m`, `1gb`), in bytes; a number without a unit is in `unit`. -1: no limit."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise _Refused(f"{text} is not a size")
    return max(0, int(found[1])) * _UNITS[(found[2] or unit)[0]]
