# SPDX-License-Identifier: Apache-2.0
"""Spark's operators and their attributes, as far as rows cross between the engines there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from volley.plan import own_ids
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.types import BOOLEAN, NULL, is_shared, parse_type

# What rows without columns carry between the engines, so that their number does: a constant.
ROW = Attribute(own_ids.CROSSING_ROW, "row", BOOLEAN, nullable=False)


def stands_for_a_query(spark: SparkSession, physical: Java) -> bool:
    """Whether the operator computes just what one operator of the optimised query says, in types that can cross."""
    tag = spark._jvm.org.apache.spark.sql.execution.SparkPlan.LOGICAL_PLAN_TAG()  # type: ignore[union-attr]
    # A link that was inherited is that of a node above: it computes more than this one.
    if not physical.getTagValue(tag).isDefined():
        return False
    have = {_id(attribute) for attribute in items(logical_of(physical).output())}
    attributes = items(physical.output())
    if any(_id(attribute) not in have for attribute in attributes):
        return False
    types = [parse_type(_type(attribute)) for attribute in attributes]
    return all(is_shared(kind) and kind != NULL for kind in types)


def logical_of(physical: Java) -> Java:
    """The part of the optimised query that the operator stands for."""
    return physical.logicalLink().get()


def items(sequence: Java) -> list[Java]:
    """Of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def attribute_of(java: Java) -> Attribute:
    return Attribute(_id(java), str(java.name()), parse_type(_type(java)), bool(java.nullable()))


def column_names(output: Sequence[Attribute]) -> list[str]:
    """Names of Spark may repeat, and files know columns by their names."""
    return [f"c{number}" for number in range(len(output))]


def _id(attribute: Java) -> int:
    return int(attribute.exprId().id())


def _type(attribute: Java) -> Any:
    return json.loads(attribute.dataType().json())
