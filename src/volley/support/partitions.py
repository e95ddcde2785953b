# SPDX-License-Identifier: Apache-2.0
"""Places the values of a captured plan that depend on Spark's partitions, below what runs natively."""

from __future__ import annotations

from volley.plan.capture import Origins
from volley.plan.jvm import Java
from volley.plan.nodes import Node, Sort, walk
from volley.plan.partition_reader import read_layout
from volley.plan.partition_values import PartitionValues
from volley.plan.spark_partitions import Layout
from volley.support.check import check
from volley.support.jvm_expressions import Preparation, delegate_to_jvm
from volley.support.sort_keys import is_sorted_alike


def place_in_partitions(plan: Node, gateway: Java, origins: Origins, programs: Preparation | None) -> Node:
    """The plan with such values in `PartitionedRows`, where these run natively."""

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

    return PartitionValues(layout_below, prepare, origins.replace).place(plan)
