# SPDX-License-Identifier: Apache-2.0
"""Captured plans, and what is in them."""

from __future__ import annotations

from pyspark.sql import DataFrame

from volley.plan import nodes
from volley.plan.capture import capture
from volley.plan.expressions import Expression
from volley.plan.expressions import walk as walk_expression
from volley.plan.nodes import Node


def plan_of(frame: DataFrame) -> Node:
    physical = frame._jdf.queryExecution().executedPlan()
    return capture(frame.sparkSession.sparkContext._gateway, physical)


def parts(plan: Node) -> list[Expression]:
    return [
        part
        for node in nodes.walk(plan)
        for expression in nodes.expressions(node)
        for part in walk_expression(expression)
    ]
