# SPDX-License-Identifier: Apache-2.0
"""Small tables with arrays and structs, written to Parquet: NULL, empty and nested arrays, NULLs inside all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

_STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.list_(pa.int32()))])
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "k": pa.int32(),
        "a": pa.list_(pa.int32()),
        "s": pa.list_(pa.string()),
        "aa": pa.list_(pa.list_(pa.int32())),
        "st": pa.list_(_STRUCT),
        "o": _STRUCT,
    }
)
_DDL = (
    "id bigint, k int, a array<int>, s array<string>, aa array<array<int>>,"
    " st array<struct<x: bigint, y: string, z: array<int>>>, o struct<x: bigint, y: string, z: array<int>>"
)


def rows(first: int, count: int, seed: int) -> pa.Table:
    chance = random.Random(seed)

    def maybe(make: Callable[[], Any]) -> Any:
        return None if chance.random() < 0.2 else make()

    def array(make: Callable[[], Any]) -> list[Any]:
        return [maybe(make) for _ in range(chance.choice([0, 0, 1, 2, 4]))]

    def numbers() -> list[Any]:
        return array(lambda: chance.randrange(9))

    def struct() -> dict[str, Any]:
        return {
            "x": maybe(lambda: chance.randrange(5)),
            "y": maybe(lambda: chance.choice("abé")),
            "z": maybe(numbers),
        }

    makers: dict[str, Callable[[], Any]] = {
        "k": lambda: chance.randrange(4),
        "a": numbers,
        "s": lambda: array(lambda: chance.choice(["", "a", "bb"])),
        "aa": lambda: array(numbers),
        "st": lambda: array(struct),
        "o": struct,
    }
    columns = {name: [maybe(make) for _ in range(count)] for name, make in makers.items()}
    return pa.table({"id": range(first, first + count), **columns}, schema=SCHEMA)


def nested_frames(spark: SparkSession, directory: Path) -> dict[str, DataFrame]:
    """The tables n (70 rows in two files) and none (no row)."""
    for folder in ("n", "none"):
        (directory / folder).mkdir(parents=True)
    pq.write_table(rows(0, 40, seed=1), directory / "n" / "a.parquet")
    pq.write_table(rows(40, 30, seed=2), directory / "n" / "b.parquet")
    pq.write_table(rows(0, 0, seed=3), directory / "none" / "a.parquet")
    return {name: spark.read.schema(_DDL).parquet(str(directory / name)) for name in ("n", "none")}
