# SPDX-License-Identifier: Apache-2.0
"""Sums and averages of floating-point numbers without keys: bit by bit those of Spark, which adds them in order."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import volley
from helpers.sampling import draw_queries
from volley.testing.session import conf

CALLS = [
    "sum(d)",
    "avg(d)",
    "sum(f)",
    "avg(f)",
    "sum(-d) filter (where i % 2 = 0)",
    "try_sum(d)",
    "try_avg(f)",
    "sum(if(i > 1, d, f))",
]
NUMBERS = [1e16, 1.0, -1e16, 1e308, -1e308, 0.1, 3.3e-8, -0.0, math.inf, -math.inf, math.nan, None]


@draw_queries(6)
@given(st.lists(st.sampled_from(NUMBERS) | st.floats(allow_nan=False), max_size=40))
@example([1e16, 1.0, -1e16])
@example([1e308, 1e308, -1e308, -1e308])
@example([-0.0])
@example([None])
@example([])
def test_they_are_added_in_order(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, numbers: list[float | None]
) -> None:
    file = tmp_path_factory.mktemp("floats") / "t.parquet"
    doubles = pa.array(numbers, pa.float64())
    columns = {"i": range(len(numbers)), "d": doubles, "f": doubles.cast(pa.float32())}
    pq.write_table(pa.table(columns), file)
    frame = spark.read.parquet(str(file)).selectExpr(
        *(f"{call} x{place}" for place, call in enumerate(CALLS))
    )
    (found,) = frame.collect()
    assert volley.last_query(spark).engine == "native"  # type: ignore[union-attr]
    with conf(spark, {"spark.volley.enabled": "false"}):
        (expected,) = frame.collect()
    for call, ours, theirs in zip(CALLS, found, expected, strict=True):
        assert _bits(ours) == _bits(theirs), call


def _bits(number: float | None) -> bytes | None:
    if number is None or math.isnan(number):
        return None if number is None else b"NaN"
    return struct.pack(">d", number)
