# SPDX-License-Identifier: Apache-2.0
"""A large range feeds as many Python processes as there are streams, without a number lost or doubled."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from volley.plan.expressions import Attribute
from volley.plan.nodes import Limit, Project, Range, Union
from volley.plan.types import LONG
from volley.testing.rows import assert_same_rows
from volley.worker.python.ranges import divide_range
from volley.worker.python.streams import crossing_rows

ID = Attribute(1, "id", LONG, False)


def numbers(node: Range) -> range:
    return range(node.start, node.end, node.step)


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_are_the_range(seed: int) -> None:
    chance = random.Random(seed)
    step = chance.choice([1, 3, 1000, -1, -7])
    rows = chance.randrange(800_000, 900_000)
    start = chance.randrange(-(10**9), 10**9)
    whole = Range(
        start, start + step * rows - chance.randrange(abs(step)) * (1 if step > 0 else -1), step, (ID,)
    )
    streams = chance.randrange(2, 9)
    divided = divide_range(Project((ID,), whole), streams)
    assert isinstance(divided, Project)
    assert isinstance(divided.child, Union)
    parts = [numbers(part) for part in divided.child.inputs if isinstance(part, Range)]
    assert len(parts) == streams
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sum(map(len, parts)) == len(numbers(whole))
    for part, following in pairwise(parts):
        assert part[-1] + step == following[0]
    assert (parts[0][0], parts[-1][-1]) == (numbers(whole)[0], numbers(whole)[-1])


def test_batches_on_their_way_to_functions_have_whole_batches_of_spark() -> None:
    plan = Project((ID,), Range(0, 10, 1, (ID,)))
    assert crossing_rows(plan, 10_000) == 60_000
    assert crossing_rows(plan, 2**16) == 2**16
    assert crossing_rows(plan, 2**16 + 1) is None
    assert crossing_rows(plan, 0) is None
    assert crossing_rows(Limit(5, 0, True, plan), 10_000) is None


@pytest.mark.parametrize("end", [-5, 0, 1, 199_999])
def test_small_ranges_are_not_divided(end: int) -> None:
    assert divide_range(Range(0, end, 1, (ID,)), 2) == Range(0, end, 1, (ID,))


def test_the_largest_range_is_divided() -> None:
    divided = divide_range(Range(-(2**63), 2**63 - 1, 2**40 + 1, (ID,)), 3)
    assert isinstance(divided, Union)
    assert all(-(2**63) <= part.end < 2**63 for part in divided.inputs if isinstance(part, Range))


@pytest.mark.since("4.1")
@pytest.mark.embedded
def test_functions_of_a_large_range(spark: SparkSession) -> None:
    from pyspark.sql.pandas.functions import arrow_udf  # which Spark 4.0 does not have

    def add(numbers: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.add(numbers, 1)

    def query(session: SparkSession) -> DataFrame:
        function: Any = arrow_udf(add, "long")  # type: ignore[call-overload]
        frame = session.range(7, 630_000, 3).where("id % 5 > 0").select(function("id").alias("v"))
        return frame.agg(F.sum("v"), F.count("v"), F.min("v"), F.max("v"), F.countDistinct("v"))

    assert_same_rows(spark, query)
