# SPDX-License-Identifier: Apache-2.0
"""Finds the columns of a result that a query sorts by, from Spark's analyzed plan."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

# Nodes that may be above the sort without changing its order.
_KEEPS_ORDER = frozenset(
    {"GlobalLimit", "LocalLimit", "Project", "Filter", "Offset", "SubqueryAlias", "WithCTE"}
)


def sort_columns(frame: DataFrame) -> list[int] | None:
    """The output positions of plain columns in the ORDER BY; None if the query does not sort.

    The ORDER BY fully determines the sequence of each such column, even if other sort keys are expressions or are not
    in the output.
    """
    analyzed = frame._jdf.queryExecution().analyzed()
    sort = _global_sort(analyzed)
    if sort is None:
        return None
    positions = {expr_id: index for index, expr_id in reversed(list(enumerate(_ids(analyzed.output()))))}
    keys = _ids_of_attributes([order.child() for order in _items(sort.order())])
    return [positions[key] for key in keys if key in positions]


def _global_sort(plan: Any) -> Any | None:
    while plan.nodeName() in _KEEPS_ORDER:
        # The last child: WithCTE has its definitions first and the query last.
        plan = plan.children().last()
    return plan if plan.nodeName() == "Sort" and getattr(plan, "global")() else None


def _ids(output: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in _items(output)]


def _ids_of_attributes(expressions: list[Any]) -> list[int]:
    return [item.exprId().id() for item in expressions if item.nodeName() == "AttributeReference"]


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
