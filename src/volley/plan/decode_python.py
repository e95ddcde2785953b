# SPDX-License-Identifier: Apache-2.0
"""Decodes the operators that call Python functions.

An operator becomes a native node only if its functions cannot tell that Spark does not run them. Otherwise it stays an
unknown operator, with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from volley.plan import synthetic_ids
from volley.plan.decode_nodes import Operator
from volley.plan.decode_python_tables import decode_table
from volley.plan.decode_python_windows import decode_window
from volley.plan.expressions import (
    AggregateCall,
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
    attribute_of,
)
from volley.plan.gathered import is_gathered
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
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonNode,
    PythonProgram,
)
from volley.plan.python_programs import (
    Functions,
    ProgramInputs,
    Refused,
    check_sent_size,
    function_of,
    functions_of,
    read_call,
    read_program,
)
from volley.plan.types import INTEGER, DataType, StructField, StructType

_cogrouped = itertools.count(synthetic_ids.COGROUPED)

PythonDecoder = Callable[[Operator, Functions], Node]


@dataclass(frozen=True)
class PythonAccess:
    """Which functions the workers run: all, none, or those whose files on the driver's machine are small enough."""

    runs: bool = True
    sent_limit_bytes: int | None = None
    """How many bytes of broadcast variables and added files may be sent; None if workers see the driver's files."""


def decode_python(
    operator: Operator, functions: Functions, access: PythonAccess, gathered: Sequence[Node]
) -> Node:
    """The node of an operator in `PYTHON_DECODED`. `functions` are the pickled functions of the plan, by number.

    The rows of the nodes in `gathered`, by identity, are in one partition because the program said `coalesce(1)`.
    """
    try:
        if not access.runs:
            raise Refused("the workers do not run Python functions")
        node = _decode(operator, functions, gathered)
        if access.sent_limit_bytes is not None and isinstance(node, PythonNode):
            check_sent_size(node.program.process, access.sent_limit_bytes)
        if isinstance(node, PythonMap) and _is_placed(node.child, gathered):
            return replace(node, single=True)
        return node
    except Refused as refusal:
        return Unknown(operator.name, str(refusal), _output(operator), operator.children)


def _decode(operator: Operator, functions: Functions, gathered: Sequence[Node]) -> Node:
    if operator.name in TABLE_OPERATORS:
        return decode_table(operator, functions, gathered)
    return _DECODERS[operator.name](operator, functions)


def _output(operator: Operator) -> tuple[Attribute, ...]:
    """The columns of the operator, which some of them do not have as a field."""
    fields = operator.expressions
    if operator.name in TABLE_OPERATORS:
        return (*operator.all("requiredChildOutput"), *operator.all("resultAttrs"))
    if "resultAttrs" in fields:
        return (*operator.children[0].output, *operator.all("resultAttrs"))
    if "windowExpression" in fields:
        return (*operator.children[0].output, *map(attribute_of, operator.all("windowExpression")))
    if "resultExpressions" in fields:
        return tuple(map(attribute_of, operator.all("resultExpressions")))
    found: tuple[Attribute, ...] = operator.all("output")
    return found


def _eval(operator: Operator, functions: Functions) -> Node:
    calls: tuple[Call, ...] = operator.all("udfs")
    results: tuple[Attribute, ...] = operator.all("resultAttrs")
    inputs = ProgramInputs()
    decoded = tuple(read_call(call, functions, inputs) for call in calls)
    used = list(functions_of(calls, functions))
    # Rows that are pickled have an operator of their own.
    eval_type = operator.values.get("evalType", EvalType.BATCHED)
    program = read_program(operator, eval_type, decoded, inputs.columns, used)
    return PythonEval(program, tuple(inputs.expressions), results, operator.children[0])


def _map(operator: Operator, functions: Functions) -> Node:
    call: Call = operator.one("func")
    child = operator.children[0]
    if operator.value("isBarrier") or operator.values.get("profile", "set") is not None:
        raise Refused("a barrier or a resource profile")
    attributes = _attributes(call, child)
    columns = (StructField("struct", StructType(_fields(attributes)), True),)
    program = _one_call(operator, call, (0,), columns, functions)
    return PythonMap(program, attributes, operator.all("output"), single=False, child=child)


def _group_map(operator: Operator, functions: Functions) -> Node:
    call: Call = operator.one("func")
    child = operator.children[0]
    keys: tuple[Attribute, ...] = operator.all("groupingAttributes")
    data = tuple(item for item in call.arguments if isinstance(item, Attribute))
    shown = [attribute.id for attribute in data]
    if shown != [attribute.id for attribute in child.output[len(keys) :]]:
        raise Refused("the columns of a group could not be read")
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
            raise Refused("the columns of a group could not be read")
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
        raise Refused("the keys of the two sides have different types")
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
        raise Refused("DISTINCT or FILTER")
    calls = tuple(item.function for item in aggregates)
    inputs = ProgramInputs()
    decoded = tuple(read_call(call, functions, inputs) for call in calls)
    program = read_program(
        operator, operator.value("evalType"), decoded, inputs.columns, list(functions_of(calls, functions))
    )
    results = tuple(Attribute(item.result_id, item.function.function, item.type) for item in aggregates)
    grouping = operator.all("groupingExpressions")
    node = PythonAggregate(program, grouping, tuple(inputs.expressions), results, operator.children[0])
    return Project(operator.all("resultExpressions"), node)


_DECODERS: dict[str, PythonDecoder] = {
    "ArrowEvalPythonExec": _eval,
    "BatchEvalPythonExec": _eval,
    "MapInPandasExec": _map,
    "MapInArrowExec": _map,
    "FlatMapGroupsInPandasExec": _group_map,
    "FlatMapGroupsInArrowExec": _group_map,
    "FlatMapCoGroupsInPandasExec": _cogroup_map,
    "FlatMapCoGroupsInArrowExec": _cogroup_map,
    "ArrowAggregatePythonExec": _aggregate,
    "ArrowWindowPythonExec": decode_window,
}


TABLE_OPERATORS = ("ArrowEvalPythonUDTFExec", "BatchEvalPythonUDTFExec")

PYTHON_DECODED = (*_DECODERS, *TABLE_OPERATORS)
"""The operators that `decode_python` reads."""


def _attributes(call: Call, child: Node) -> tuple[Attribute, ...]:
    """The child's columns as Catalyst knows them: captured nodes do not know whether a column can be NULL."""
    found = tuple(item for item in call.arguments if isinstance(item, Attribute))
    if not found or [item.id for item in found] != [column.id for column in child.output]:
        raise Refused("the columns of the input could not be read")
    return found


def _fields(attributes: tuple[Attribute, ...]) -> tuple[StructField, ...]:
    return tuple(StructField(item.name, item.type, item.nullable) for item in attributes)


def _is_placed(node: Node, gathered: Sequence[Node]) -> bool:
    """Whether rows were partitioned or sorted for what reads them, which sees that."""
    if is_gathered(node, gathered):
        return True
    while isinstance(node, Project | Filter | PythonEval):
        node = node.child
    placed = (Partitioning.HASH, Partitioning.RANGE, Partitioning.SINGLE)
    if isinstance(node, Exchange):
        return node.partitioning in placed
    return isinstance(node, Sort | TopN | Limit)


def _one_call(
    operator: Operator,
    call: Call,
    offsets: tuple[int, ...],
    columns: tuple[StructField, ...],
    functions: Functions,
) -> PythonProgram:
    """The program of an operator with one function, which gets what `offsets` say."""
    decoded = read_call(replace(call, arguments=()), functions, ProgramInputs())
    decoded = replace(decoded, arguments=tuple((offset, None) for offset in offsets))
    used = [function_of(call, functions)]
    return read_program(operator, call.option("evalType"), (decoded,), columns, used)
