# SPDX-License-Identifier: Apache-2.0
"""Leaves of every kind for random plans, all with the columns of `tables.py`: few rows, NULLs, duplicates, no rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from helpers.tables import SCHEMA, rows, write
from volley.bench.data import TABLES
from volley.spark_versions.registry import current
from volley.testing.session import conf

COLUMNS = ("id", "k", "l", "s", "d", "m", "f", "g", "b", "dt", "ts")
DDL = {
    "id": "bigint",
    "k": "int",
    "l": "bigint",
    "s": "string",
    "d": "decimal(7,2)",
    "m": "decimal(15,2)",
    "f": "double",
    "g": "float",
    "b": "boolean",
    "dt": "date",
    "ts": "timestamp",
}

NATIVE = {
    "t": "Parquet, two files",
    "u": "Parquet, fewer rows",
    "e": "Parquet without rows",
    "folders": "Parquet in folders, one of NULLs and one whose file has no rows",
    "nulls": "Parquet, every column but the id NULL in every row",
    "local": "local rows",
    "nothing": "local rows of which none is left",
    "numbers": "a range",
    "one": "one row",
    **({"source": "a Python data source"} if current().has_data_sources else {}),
    "cached": "a cached frame",
}
"""Views that the native side reads by itself."""

SPARKS = {"handed": "an RDD"}
"""Views that Spark has to read, and to hand over if anything is to run natively."""


@contextmanager
def leaf_frames(spark: SparkSession, directory: Path) -> Iterator[dict[str, DataFrame]]:
    # Views of both kinds live in one session, and a view that is replaced does not come back.
    assert not {*NATIVE, *SPARKS} & set(TABLES)
    with conf(spark, {"spark.volley.enabled": "false"}):
        frames = _frames(spark, directory)
        cached = frames["t"].where("id > 3").cache()
        cached.count()
        spark.udf.register("same_int", lambda number: number, "int")
        frames["cached"] = cached
        frames["handed"] = frames["u"].localCheckpoint()
    yield frames
    with conf(spark, {"spark.volley.enabled": "false"}):
        cached.unpersist()


def _frames(spark: SparkSession, directory: Path) -> dict[str, DataFrame]:
    ddl = ", ".join(f"{name} {kind}" for name, kind in DDL.items())
    frames = {}
    for name, table in (("t", rows(60, 60)), ("u", rows(25, 25)), ("e", rows(0, 0)), ("nulls", _nulls(9))):
        write(directory / name, table)
        frames[name] = spark.read.schema(ddl).parquet(str(directory / name))
    _write_folders(directory / "folders", rows(31, 31))
    frames["folders"] = spark.read.schema(ddl).parquet(str(directory / "folders"))
    frames["local"] = spark.sql(_values(rows(11, 11)))
    frames["nothing"] = frames["local"].where("id > 1000")
    computed = ", ".join(_computed(name) for name in COLUMNS)
    frames["numbers"] = spark.sql(f"select {computed} from range(12)")
    frames["one"] = spark.sql(f"select {computed} from (select 4L id)")
    if current().has_data_sources:
        frames["source"] = _numbers(spark).selectExpr(*(_computed(name) for name in COLUMNS))
    return {name: frame.select(*COLUMNS) for name, frame in frames.items()}


def _numbers(spark: SparkSession) -> DataFrame:
    from volley.testing.sources import Numbers

    spark.dataSource.register(Numbers)
    return spark.read.format("numbers").options(splits="3", rows="5").load()


def _nulls(count: int) -> pa.Table:
    columns = [
        pa.array(range(count), pa.int64()),
        *(pa.nulls(count, field.type) for field in list(SCHEMA)[1:]),
    ]
    return pa.table(columns, schema=SCHEMA)


def _write_folders(directory: Path, table: pa.Table) -> None:
    """One folder for each k, and one more whose file is empty."""
    rest = table.drop_columns(["k"])
    keys = table.column("k").to_pylist()
    for key in sorted(set(keys), key=str):
        folder = directory / f"k={'__HIVE_DEFAULT_PARTITION__' if key is None else key}"
        folder.mkdir(parents=True)
        pq.write_table(rest.filter(pa.array([other == key for other in keys])), folder / "0.parquet")
    (directory / "k=99").mkdir()
    pq.write_table(rest.slice(0, 0), directory / "k=99" / "0.parquet")


def _computed(name: str) -> str:
    """A column made of `id`, of the type that it has elsewhere."""
    text = {
        "id": "id",
        "k": "if(id % 4 = 3, null, id % 5)",
        "l": "id % 3",
        "s": "if(id % 5 = 2, null, concat('a', id % 2))",
        "d": "id / 4",
        "m": "id * -7.25",
        "f": "if(id % 6 = 5, double('nan'), id / 2)",
        "g": "id / 2",
        "b": "if(id % 3 = 1, null, id % 2 = 0)",
        "dt": "date_add(date'2020-01-01', cast(id % 15 as int))",
        "ts": "date_add(date'2020-01-01', cast(id % 7 as int))",
    }[name]
    return f"cast({text} as {DDL[name]}) {name}"


def _values(table: pa.Table) -> str:
    lines = [
        "(" + ", ".join(f"cast({_literal(row[name])} as {DDL[name]})" for name in COLUMNS) + ")"
        for row in table.to_pylist()
    ]
    return f"select * from values {', '.join(lines)} as v({', '.join(COLUMNS)})"


def _literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case datetime.datetime():
            return f"timestamp'{value:%Y-%m-%d %H:%M:%S}'"
        case datetime.date():
            return f"date'{value}'"
        case float():
            return f"double('{value}')"
        case str():
            return f"'{value}'"
        case Decimal() | bool() | int():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no literal here")
