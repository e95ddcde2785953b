# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions over whole window partitions, where DataFusion has no window function for them.

    Window      percentile(x, 0.5) over (partition by k)
      child

The partition is a group, whose rows are kept as a list and become rows again:

    Project     the columns of the child, p
      Generate  inline(rows)
        Aggregate   by k: p = percentile(x, 0.5), rows = collect_rows(the columns of the child)
          child

Only functions whose result does not depend on the order of rows: that of a window is not kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from volley.plan import synthetic_ids
from volley.plan.expressions import (
    COLLECT_ROWS,
    JVM_AGGREGATE,
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
    WindowCall,
    attribute_of,
)
from volley.plan.nodes import Aggregate, Generate, Node, Project, Window, transform
from volley.plan.order import order_of
from volley.plan.subqueries import with_subqueries
from volley.plan.types import STRING, ArrayType, StructField, StructType
from volley.support.jvm_aggregates import kind_in_any_order
from volley.support.operators import WINDOWS

_ids = itertools.count(synthetic_ids.PARTITION_ROWS)

# If it depends on the order of rows after all, as with ties, the run fails and Spark runs the query.
_NATIVE = frozenset(
    {
        "Percentile",
        "PercentileDisc",
        "MinBy",
        "MaxBy",
        "MaxMinByK",
        "Mode",
        "HyperLogLogPlusPlus",
        "CollectSet",
    }
    | {"Skewness", "Kurtosis", "Corr", "CovPopulation", "CovSample"}
    | {"RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrReplacement"}
    | {"BitAndAgg", "BitOrAgg", "BitXorAgg"}
)


def aggregate_whole_partitions(plan: Node, replaced: Callable[[Node, Node], None]) -> Node:
    """The plan with aggregates in the place of such windows. `replaced` is told of every node that became another."""

    def change(node: Node) -> Node:
        if not isinstance(node, Window):
            return node
        new = _rewrite(node)
        if new is not node:
            replaced(node, new)
        return new

    return with_subqueries(transform(plan, change), lambda inner: aggregate_whole_partitions(inner, replaced))


def _rewrite(node: Window) -> Node:
    columns = tuple({column.id: column for column in node.child.output}.values())
    groups: dict[tuple[Expression, ...], list[Alias]] = {}
    for alias in node.calls:
        if isinstance(alias.child, WindowCall) and _is_aggregated(alias.child):
            groups.setdefault(alias.child.partition_by, []).append(alias)
    if len(groups) != 1 or not columns or order_of(node.child).requested:
        return node
    ((keys, aliases),) = groups.items()
    rows = _aggregate(node.child, columns, keys, aliases)
    rest = tuple(alias for alias in node.calls if alias not in aliases)
    return Project(node.output, Window(rest, rows) if rest else rows)


def _is_aggregated(call: WindowCall) -> bool:
    function = call.function
    if not isinstance(function, AggregateCall) or function.distinct:
        return False
    if call.frame.lower is not None or call.frame.upper is not None:
        return False
    name = function.function.function
    return name in _NATIVE or (name not in WINDOWS and kind_in_any_order(function.function) == JVM_AGGREGATE)


def _aggregate(
    child: Node, columns: tuple[Attribute, ...], keys: tuple[Expression, ...], aliases: list[Alias]
) -> Node:
    struct = StructType(tuple(StructField(f"c{at}", c.type, True) for at, c in enumerate(columns)))
    parts = [(Literal(field.name, STRING), c) for field, c in zip(struct.fields, columns, strict=True)]
    row = Call("CreateNamedStruct", tuple(itertools.chain.from_iterable(parts)), struct)
    kind = ArrayType(struct, True)
    listed = Call(COLLECT_ROWS, (row,), kind, options=(("ignoreNulls", False),))
    rows = Attribute(next(_ids), "rows", kind)
    calls = [replace(_function(alias), mode=AggregateMode.COMPLETE, result_id=alias.id) for alias in aliases]
    calls.append(
        AggregateCall(listed, AggregateMode.COMPLETE, distinct=False, filter=None, result_id=rows.id)
    )
    buffers = (*map(attribute_of, aliases), rows)
    grouping = tuple(Alias(next(_ids), "key", key) for key in keys)
    aggregate = Aggregate(grouping, tuple(calls), buffers, buffers, child)
    return Generate("Inline", (rows,), buffers[:-1], outer=False, generated=columns, child=aggregate)


def _function(alias: Alias) -> AggregateCall:
    assert isinstance(alias.child, WindowCall)
    assert isinstance(alias.child.function, AggregateCall)
    return alias.child.function
