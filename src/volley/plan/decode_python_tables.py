# SPDX-License-Identifier: Apache-2.0
"""Decodes table functions (`@udtf`, `@arrow_udtf`).

One object of the function's class sees all rows of a task, one after the other, and may keep what it has seen. So the
rows must be those that it sees in Spark: all of them (one row, WITH SINGLE PARTITION), or the groups of a PARTITION BY,
with a new object for each. Rows that Spark divides as it likes are native if `eval` does not use its object.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

from volley.plan import synthetic_ids
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Alias, Attribute, Call, Expression, SortKey
from volley.plan.nodes import Exchange, Filter, Limit, Node, OneRow, Partitioning, Project, Sort, TopN
from volley.plan.pickled_classes import methods_use_object
from volley.plan.python_nodes import EvalType, PythonCall, PythonTable, PythonTableFunction
from volley.plan.python_programs import (
    Functions,
    ProgramInputs,
    Refused,
    function_of,
    pickles_of,
    read_argument,
    read_command,
    read_program,
)
from volley.plan.types import StructType, parse_type

_keys = itertools.count(synthetic_ids.TABLE_KEY)

_KEEPS_ROWS = (b"__init__", b"terminate", b"SkipRestOfInputTable")
"""Names in the pickle of a class whose objects may depend on which rows they see together."""


def decode_table(operator: Operator, functions: Functions, gathered: Sequence[Node]) -> Node:
    call: Call = operator.one("udtf")
    function = function_of(call, functions)
    inputs = ProgramInputs()
    arguments = tuple(read_argument(argument, inputs) for argument in call.arguments)
    eval_type = call.option("evalType")
    read = PythonCall(str(call.option("name")), (read_command(function),), arguments)
    program = read_program(operator, eval_type, (read,), inputs.columns, [function])
    program = replace(program, table_function=_table_function(call, arguments))
    required: tuple[Attribute, ...] = operator.all("requiredChildOutput")
    if eval_type == EvalType.ARROW_UDTF and required:
        raise Refused("an Arrow table function whose rows stand beside columns of the rows that it reads")
    for column in program.columns:
        _check_names(column.type)
    node = PythonTable(
        program,
        (),
        (),
        tuple(inputs.expressions),
        required,
        operator.all("resultAttrs"),
        _is_single(operator.children[0], gathered),
        operator.children[0],
    )
    if _partition_columns(call):
        return _group(node)
    pickles = pickles_of(read.commands[0], function)
    if not node.single and not all(map(_keeps_nothing, pickles)):
        raise Refused("a table function that may keep rows, over rows that Spark divides")
    return node


def _table_function(call: Call, arguments: tuple[tuple[int, str | None], ...]) -> PythonTableFunction:
    returns = parse_type(json.loads(str(call.option("elementSchema"))))
    if not isinstance(returns, StructType):
        raise Refused("the columns of a table function could not be read")
    analyzed = call.option("pickledAnalyzeResult")
    tables = call.option("tableArguments")
    is_table = json.loads(str(tables)) if tables is not None else [False] * len(arguments)
    return PythonTableFunction(
        returns,
        None if analyzed is None else base64.b64decode(str(analyzed)),
        _partition_columns(call),
        tuple(place for (place, _), table in zip(arguments, is_table, strict=True) if table),
    )


def _partition_columns(call: Call) -> tuple[int, ...]:
    found = call.option("pythonUDTFPartitionColumnIndexes")
    return () if found is None else tuple(json.loads(str(found)))


def _check_names(data_type: object) -> None:
    """Spark refuses structs with two fields of a name, but only when the function runs."""
    if isinstance(data_type, StructType):
        names = {field.name for field in data_type.fields}
        if len(names) < len(data_type.fields):
            raise Refused("a table with two columns of the same name")


def _is_single(node: Node, gathered: Sequence[Node]) -> bool:
    """Whether Spark has all rows in one task."""
    while isinstance(node, Project | Filter | Sort) and not any(node is one for one in gathered):
        node = node.child
    if isinstance(node, Exchange):
        return node.partitioning is Partitioning.SINGLE
    is_whole = isinstance(node, OneRow | TopN) or (isinstance(node, Limit) and node.whole)
    return is_whole or any(node is one for one in gathered)


def _keeps_nothing(pickle: bytes) -> bool:
    # A class that is pickled by its name does not show its methods.
    return not any(name in pickle for name in _KEEPS_ROWS) and not methods_use_object(pickle, "eval")


def _group(node: PythonTable) -> PythonTable:
    """The rows of a PARTITION BY, which Spark exchanges and sorts by its keys, as groups."""
    match node.child:
        case Project(expressions, Sort(order, False, Exchange(Partitioning.HASH, _, keys, _, below))) if (
            _starts_with(order, keys)
        ):
            pass
        case _:
            raise Refused("the rows of a PARTITION BY could not be read")
    grouping = tuple(Alias(next(_keys), "key", key) for key in keys)
    rest = tuple((key, Alias(next(_keys), "order", key.child)) for key in order[len(keys) :])
    child = Project((*expressions, *grouping, *(alias for _, alias in rest)), below)
    columns = child.output[len(expressions) :]
    return replace(
        node,
        grouping=columns[: len(keys)],
        order=tuple(
            replace(key, child=column) for (key, _), column in zip(rest, columns[len(keys) :], strict=True)
        ),
        single=False,
        child=child,
    )


def _starts_with(order: tuple[SortKey, ...], keys: tuple[Expression, ...]) -> bool:
    return len(keys) > 0 and tuple(key.child for key in order[: len(keys)]) == keys
