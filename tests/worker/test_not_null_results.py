# SPDX-License-Identifier: Apache-2.0
"""NULLs that Python functions return although their schema says NOT NULL: Spark fails, in its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley


def _batches(values: list[object]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def change(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"a": value} for value in values])

    return change


@pytest.mark.parametrize(
    "query",
    [
        lambda frame: frame.mapInArrow(_batches([1, None]), "a long not null"),
        lambda frame: frame.mapInArrow(_batches(["x", None]), "a string not null"),
        lambda frame: frame.mapInArrow(_batches([{"x": 1}, None, {"x": None}]), "a struct<x: long not null>"),
        lambda frame: frame.groupBy("id").applyInPandas(
            lambda group: pd.DataFrame({"a": ["x", None]}), "a string not null"
        ),
    ],
)
def test_refused(spark: SparkSession, query: Callable[[DataFrame], DataFrame]) -> None:
    with pytest.raises(Exception, match=r"is null|NullPointerException"):
        query(spark.range(1)).collect()


def test_kept(spark: SparkSession) -> None:
    """NULL structs have no fields that could be missing."""
    frame = spark.range(1).mapInArrow(_batches([{"x": 1}, None]), "a struct<x: long not null>")
    assert [row.a and row.a.x for row in frame.collect()] == [1, None]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
