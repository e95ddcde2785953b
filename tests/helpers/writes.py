# SPDX-License-Identifier: Apache-2.0
"""Writes on both engines, and what they left, compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

import volley
from volley.testing.session import conf

PLAIN = {"spark.volley.enabled": "false"}


# Names that Spark escapes, an empty one, none, and others that it leaves alone.
AWKWARD = "array('a/b', 'x=y', '', null, 'ü %', 'plain', 'q?*:#', '{[]}^', 'tab\\t', 'ends. ')"


def both(
    spark: SparkSession, directory: Path, write: Callable[[DataFrameWriter, str], Any], *frames: DataFrame
) -> None:
    """Write the frames one after the other on both engines; what Spark reads back, and the footers, must be equal."""
    for name, settings in (("spark", PLAIN), ("volley", {})):
        with conf(spark, settings):
            for frame in frames:
                write(frame.write, str(directory / name))
                if name == "volley":
                    assert_native(spark)
    assert_same_tables(spark, directory / "spark", directory / "volley")


def stored(spark: SparkSession, text: str, path: Path) -> DataFrame:
    """The rows of a query from files that Spark wrote."""
    with conf(spark, PLAIN):
        spark.sql(text).repartition(4).write.parquet(str(path))
    return spark.read.parquet(str(path))


def assert_native(spark: SparkSession) -> None:
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, report.spark_tasks, [str(reason) for reason in report.reasons]) == (
        "native",
        0,
        [],
    )


def assert_same_tables(spark: SparkSession, expected: Path, actual: Path) -> None:
    assert folders(actual) == folders(expected)
    with conf(spark, PLAIN):
        one, two = (
            spark.read.parquet(str(path)) if parquet_files(path) else None for path in (expected, actual)
        )
        if one is None or two is None:
            assert one is two
            return
        assert two.schema == one.schema
        columns = [F.to_json(F.struct("*")).alias("row")]
        assert sorted(two.select(columns).collect()) == sorted(one.select(columns).collect())
    assert footer(actual) == footer(expected)
    hidden = [path.name for path in actual.rglob(".*") if path.name.startswith(".volley")]
    assert not hidden
    assert not [path for path in actual.parent.iterdir() if path.name.startswith(".volley")]


def folders(table: Path) -> list[str]:
    """Folders and marks, not the data files, whose number is each engine's own business."""
    found = (path.relative_to(table) for path in table.rglob("*") if not path.name.startswith((".", "part-")))
    return sorted(map(str, found))


def parquet_files(table: Path) -> list[Path]:
    return sorted(table.rglob("part-*.parquet"))


def footer(table: Path) -> tuple[str, dict[bytes, bytes], set[str], set[str]]:
    """Of any file: the Parquet schema, Spark's metadata, codecs; and how file names end."""
    files = parquet_files(table)
    metadata = pq.read_metadata(files[0])
    codecs = {
        metadata.row_group(group).column(column).compression
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    }
    schema = str(metadata.schema).split("\n", 2)[2]
    return schema, metadata.metadata, codecs, {file.name[len("part-00000-") + 36 :] for file in files}
