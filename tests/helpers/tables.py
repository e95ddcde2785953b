# SPDX-License-Identifier: Apache-2.0
"""Small tables of awkward values, written to Parquet once a run: NULLs, duplicates, NaN, both zeros, empty text."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

_NAN, _INFINITY = float("nan"), float("inf")
_DAY = datetime.date(2020, 1, 1)
_TIME = datetime.datetime(2020, 1, 1)

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "k": pa.int32(),
        "l": pa.int64(),
        "s": pa.string(),
        "d": pa.decimal128(7, 2),
        "m": pa.decimal128(15, 2),
        "w": pa.decimal128(30, 4),
        "f": pa.float64(),
        "g": pa.float32(),
        "b": pa.bool_(),
        "dt": pa.date32(),
        "ts": pa.timestamp("us", tz="UTC"),
    }
)


def rows(count: int, seed: int) -> pa.Table:
    chance = random.Random(seed)
    makers: dict[str, Callable[[], Any]] = {
        "k": lambda: chance.randint(0, 4),
        "l": lambda: chance.choice([0, 1, 2, 10**12, -5]),
        "s": lambda: chance.choice(["a", "b", "", "é", "zz"]),
        "d": lambda: Decimal(chance.randint(-500, 500)).scaleb(-2),
        "m": lambda: Decimal(chance.randint(-(10**9), 10**9)).scaleb(-2),
        "w": lambda: Decimal(chance.randint(-(10**20), 10**20)).scaleb(-4),
        "f": lambda: chance.choice([0.0, -0.0, _NAN, 1.5, 2.5, _INFINITY, -_INFINITY]),
        "g": lambda: chance.choice([0.5, 1.5, _NAN]),
        "b": lambda: chance.random() < 0.5,
        "dt": lambda: _DAY + datetime.timedelta(days=chance.randint(0, 20)),
        "ts": lambda: _TIME + datetime.timedelta(hours=chance.randint(0, 20)),
    }
    columns = {
        name: [None if chance.random() < 0.2 else make() for _ in range(count)]
        for name, make in makers.items()
    }
    return pa.table({"id": range(count), **columns}, schema=SCHEMA)


def write(directory: Path, table: pa.Table) -> None:
    """Two files, so that a scan has something to divide; their names need escaping in a URL.

    The footers claim an order that the rows do not have: Spark does not look at it.
    """
    directory.mkdir(parents=True)
    half = table.num_rows // 2
    claimed = [pq.SortingColumn(table.column_names.index("k"))]
    pq.write_table(table.slice(0, half), directory / "first part.parquet", sorting_columns=claimed)
    pq.write_table(table.slice(half), directory / "100%.parquet", sorting_columns=claimed)


def frames(spark: SparkSession, directory: Path) -> dict[str, DataFrame]:
    """The tables t (60 rows), u (25 rows) and e (none)."""
    found = {}
    for name, count in (("t", 60), ("u", 25), ("e", 0)):
        write(directory / name, rows(count, seed=count))
        found[name] = spark.read.schema(_ddl()).parquet(str(directory / name))
    return found


def _ddl() -> str:
    """Given, not inferred: inferring runs a Spark job for every view."""
    return (
        "id bigint, k int, l bigint, s string, d decimal(7,2), m decimal(15,2), w decimal(30,4), f double, g float,"
        " b boolean, dt date, ts timestamp"
    )
