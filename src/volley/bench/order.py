# SPDX-License-Identifier: Apache-2.0
"""Which columns of a result a query sorts by, as Spark understood it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

# What may stand above the sort without disturbing its order.
_KEEPS_ORDER = frozenset(
    {"GlobalLimit", "LocalLimit", "Project", "Filter", "Offset", "SubqueryAlias", "WithCTE"}
)


def sort_columns(frame: DataFrame) -> list[int] | None:
    """Positions in the output of the ORDER BY's plain columns; None when the query asks for no order.

    The sequence of each such column is fully given by the ORDER BY, also where other sort keys are expressions or are
    not in the output.
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
        # The last child: WithCTE has its definitions first and the query itself at the end.
        plan = plan.children().last()
    return plan if plan.nodeName() == "Sort" and getattr(plan, "global")() else None


def _ids(output: Any) -> list[int]:
    return [attribute.exprId().id() for attribute in _items(output)]


def _ids_of_attributes(expressions: list[Any]) -> list[int]:
    return [item.exprId().id() for item in expressions if item.nodeName() == "AttributeReference"]


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
