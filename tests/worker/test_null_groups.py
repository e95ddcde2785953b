# SPDX-License-Identifier: Apache-2.0
"""Rows whose key is NULL are one group, whatever a file's decoder left in the place of the missing values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.functions import pandas_udf

from helpers.sampling import every
from volley.testing.rows import assert_same_rows

pytestmark = pytest.mark.embedded

ROWS = 300
KEYS: dict[str, Callable[[int], Any]] = {
    "number": lambda row: row % 5,
    "text": lambda row: f"k{row % 5}",
    "decimal": lambda row: Decimal(row % 5).scaleb(-2),
    "day": lambda row: datetime.date(2024, 1, 1 + row % 5),
    "flag": lambda row: row % 2 == 0,
    "binary": lambda row: bytes([row % 5]),
}


# Functions are made where they are used: Spark's workers cannot import a module of tests.
def length(column: str) -> Column:
    def length_of(values: pd.Series) -> int:
        return len(values)

    function: Any = pandas_udf(length_of, "long")  # type: ignore[call-overload]
    counted: Column = function(column)
    return counted


def apply(frame: DataFrame, key: str) -> DataFrame:
    def sizes(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [len(rows)], "s": [rows["id"].sum()]})

    return frame.groupBy(key).applyInPandas(sizes, "n long, s long")


def cogroup(frame: DataFrame, key: str) -> DataFrame:
    def sizes(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"n": [len(left)], "s": [len(right)]})

    pairs = frame.groupBy(key).cogroup(frame.where("id % 3 = 0").groupBy(key))
    return pairs.applyInPandas(sizes, "n long, s long")


QUERIES: dict[str, Callable[[DataFrame, str], DataFrame]] = {
    "aggregate": lambda frame, key: frame.groupBy(key).agg(length("id")),
    "applyInPandas": apply,
    "cogroup": cogroup,
    "window": lambda frame, key: frame.select("id", length("id").over(Window.partitionBy(key))),
    "moving window": lambda frame, key: frame.select(
        "id", length("id").over(Window.partitionBy(key).orderBy("id").rowsBetween(-3, 1))
    ),
}


@pytest.fixture
def table(distributed: SparkSession, tmp_path: Path) -> DataFrame:
    columns = {
        name: pa.array([None if row % 3 == 0 or row % 7 == 0 else value(row) for row in range(ROWS)])
        for name, value in KEYS.items()
    }
    pq.write_table(pa.table({"id": pa.arange(0, ROWS), **columns}), tmp_path / "t.parquet")
    return distributed.read.parquet(str(tmp_path))


@pytest.mark.parametrize("query", every(2, QUERIES))
def test_rows_without_a_key_are_one_group(distributed: SparkSession, table: DataFrame, query: str) -> None:
    keys = list(KEYS) if query == "aggregate" else ["number", "text"]
    for key in keys:
        assert_same_rows(distributed, QUERIES[query](table, key))


def test_table_functions(distributed: SparkSession, table: DataFrame) -> None:
    class Count:
        def __init__(self) -> None:
            self.rows = 0

        def eval(self, row: Row) -> None:
            self.rows += 1

        def terminate(self) -> Iterator[tuple[int]]:
            yield (self.rows,)

    counted: Any = udtf(Count, returnType="rows long")
    distributed.udtf.register("count_rows", counted)
    table.createOrReplaceTempView("rows_of_groups")
    assert_same_rows(
        distributed,
        "select * from count_rows(table(select id, number from rows_of_groups) partition by number)",
    )
