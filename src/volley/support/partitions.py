# SPDX-License-Identifier: Apache-2.0
"""Places what depends on Spark's partitions in a captured plan, below what runs natively: values and aggregates."""

from __future__ import annotations

from volley.plan.capture import Origins
from volley.plan.carried_order import Order, is_stable
from volley.plan.jvm import Java
from volley.plan.nodes import Node, Sort, walk
from volley.plan.partition_aggregates import AggregatePlaces, GroupLimits, Halves
from volley.plan.partition_reader import read_layout
from volley.plan.partition_values import PartitionValues, depends_on_partitions
from volley.plan.spark_partitions import Layout
from volley.support.aggregates import find_placed_calls
from volley.support.check import check
from volley.support.jvm_expressions import Preparation, delegate_to_jvm
from volley.support.sort_keys import is_sorted_alike


def place_in_partitions(plan: Node, gateway: Java, origins: Origins, programs: Preparation | None) -> Node:
    """The plan with such values in `PartitionedRows`, and places for the rows of such aggregates, if these are native.

    The same object, if there is nothing of both.
    """

    def layout_below(node: Node) -> Layout | None:
        operator = origins.of(node)
        return None if operator is None else read_layout(gateway, operator.children().apply(0))

    def prepare(rows: Node) -> Node | None:
        sorts = (node for node in walk(rows) if isinstance(node, Sort))
        if not all(is_sorted_alike(key.type) for sort in sorts for key in sort.keys):
            return None
        if programs is not None:
            rows = delegate_to_jvm(rows, programs, origins.replace)
        return rows if check(rows).native else None

    def find_calls(halves: Halves) -> set[int]:
        return find_placed_calls(halves, by_jvm=programs is not None)

    def limits(halves: Halves) -> GroupLimits | None:
        operator = origins.of(halves.over_rows)
        return None if operator is None else _group_limits(operator, halves)

    if depends_on_partitions(plan):
        plan = PartitionValues(layout_below, prepare, origins.replace).place(plan)
    return AggregatePlaces(find_calls, limits, layout_below, prepare, origins.replace).place(plan)


def _group_limits(operator: Java, halves: Halves) -> GroupLimits | None:
    """Up to where an operator of Spark aggregates the rows of each group in their order."""
    match str(operator.nodeName()):
        case "HashAggregate":
            return GroupLimits()
        case "ObjectHashAggregate":
            # It notices with the next row that there are as many groups as the setting says.
            return GroupLimits(groups=operator.conf().objectAggSortBasedFallbackThreshold() - 1)
        case "SortAggregate":
            return GroupLimits(nulls=all(is_stable(sort, Order()) for sort in halves.sorts))
        case _:
            return None
