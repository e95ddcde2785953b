# SPDX-License-Identifier: Apache-2.0
"""Attributes of Spark operators at which rows cross between the engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from volley.plan import synthetic_ids
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.types import BOOLEAN, NULL, is_shared, parse_type

# A constant column for rows without columns, so that their count survives the crossing.
ROW = Attribute(synthetic_ids.CROSSING_ROW, "row", BOOLEAN, nullable=False)


def stands_for_a_query(spark: SparkSession, physical: Java) -> bool:
    """Whether the operator computes exactly one operator of the optimized query, with types that can cross."""
    tag = spark._jvm.org.apache.spark.sql.execution.SparkPlan.LOGICAL_PLAN_TAG()  # type: ignore[union-attr]
    # An inherited link belongs to a node above, which computes more than this one.
    if not physical.getTagValue(tag).isDefined():
        return False
    have = {_id(attribute) for attribute in items(logical_of(physical).output())}
    attributes = items(physical.output())
    if any(_id(attribute) not in have for attribute in attributes):
        return False
    types = [parse_type(_type(attribute)) for attribute in attributes]
    return all(is_shared(kind) and kind != NULL for kind in types)


def logical_of(physical: Java) -> Java:
    """The part of the optimized query that the operator computes."""
    return physical.logicalLink().get()


def items(sequence: Java) -> list[Java]:
    """The items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def attribute_of(java: Java) -> Attribute:
    return Attribute(_id(java), str(java.name()), parse_type(_type(java)), bool(java.nullable()))


def column_names(output: Sequence[Attribute]) -> list[str]:
    """Unique column names: Spark's may repeat, but files identify columns by name."""
    return [f"c{number}" for number in range(len(output))]


def _id(attribute: Java) -> int:
    return int(attribute.exprId().id())


def _type(attribute: Java) -> Any:
    return json.loads(attribute.dataType().json())
