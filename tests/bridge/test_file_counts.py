# SPDX-License-Identifier: Apache-2.0
"""Writes of repartitioned rows: as many files as Spark writes, with equal keys in one file, and the order within it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from helpers.writes import assert_native, both, parquet_files, stored
from volley.plan.nodes import OneRow, WriteFiles
from volley.stages.layout import share_files
from volley.testing.session import conf

TABLE = "select id, id % 7 as k, cast(id % 3 as string) as name, id * 1.5 as d from range(0, 3000, 1, 4)"

Program = tuple[Callable[[DataFrame], DataFrame], list[str]]
"""The rows to write, and the columns that name their folders."""

COUNTED: dict[str, Program] = {
    "repartition": (lambda rows: rows.repartition(5), []),
    "coalesce": (lambda rows: rows.repartition(6).coalesce(3), []),
    "above a filter": (lambda rows: rows.where("id < 99").repartition(6), []),
    "below a projection": (lambda rows: rows.repartition(4).selectExpr("id + 1 as x", "name"), []),
    "below a filter": (lambda rows: rows.repartition(4).where("k > 1"), []),
    "above an aggregate": (lambda rows: rows.groupBy("id").count().repartition(4), []),
    "keys that are not written": (lambda rows: rows.repartition(2, "k").drop("k"), []),
    "sorted before": (lambda rows: rows.orderBy("id").limit(50).repartition(4), []),
    "folders": (lambda rows: rows.repartition(3), ["name"]),
    "one file in a folder": (lambda rows: rows.repartition("name"), ["name"]),
    "a number and one file in a folder": (lambda rows: rows.repartition(8, "name"), ["name"]),
    "keys among the folders": (lambda rows: rows.repartition("k"), ["name", "k"]),
}


BY_KEY = {
    "keys that are not written",
    "one file in a folder",
    "a number and one file in a folder",
    "keys among the folders",
}


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_as_many_files_as_spark(spark: SparkSession, tmp_path: Path, workers: str) -> None:
    table = stored(spark, TABLE, tmp_path / "source")
    for name, (program, folders) in COUNTED.items():
        directory = tmp_path / name
        with conf(spark, {"spark.volley.local.workers": workers}):
            both(
                spark,
                directory,
                lambda writer, path, by=folders: writer.partitionBy(*by).parquet(path),  # type: ignore[misc]
                program(table),
            )
        ours, theirs = count_files(directory / "volley"), count_files(directory / "spark")
        if workers == "1" or name in BY_KEY:
            assert ours == theirs, name
        else:
            # A task that was so late that the others had read all rows of this small table writes no file.
            assert ours.keys() == theirs.keys(), name
            assert ours <= theirs, name


def test_without_adaptive_execution_partitions_by_key_are_not_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = stored(spark, TABLE, tmp_path / "source")
    with conf(spark, {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "50"}):
        table.repartition("id").write.parquet(str(tmp_path / "table"))
        assert_native(spark)
    assert len(parquet_files(tmp_path / "table")) == 50


def test_files_are_of_equal_size(spark: SparkSession, tmp_path: Path) -> None:
    stored(spark, TABLE, tmp_path / "source").repartition(7).write.parquet(str(tmp_path / "table"))
    assert_native(spark)
    rows = [pq.read_metadata(file).num_rows for file in parquet_files(tmp_path / "table")]
    assert sum(rows) == 3000
    assert max(rows) - min(rows) <= 1


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("folders", [[], ["name"]])
def test_keys_are_together_and_sorted(
    spark: SparkSession, tmp_path: Path, workers: str, folders: list[str]
) -> None:
    table = stored(spark, TABLE, tmp_path / "source")
    order = [F.col("k"), F.col("d").desc()]
    with conf(spark, {"spark.volley.local.workers": workers}):
        rows = table.repartition(4, "k").sortWithinPartitions("name", *order)
        rows.write.partitionBy(*folders).parquet(str(tmp_path / "table"))
        assert_native(spark)
    files_of = Counter[tuple[str, int]]()
    found = 0
    for file in parquet_files(tmp_path / "table"):
        columns = [] if folders else ["name"]
        values = pq.ParquetFile(file).read([*columns, "k", "d"]).to_pylist()
        keys = [(row.get("name", ""), row["k"], -row["d"]) for row in values]
        assert keys == sorted(keys)
        files_of.update({(file.parent.name if folders else "", row["k"]) for row in values})
        found += len(values)
    assert found == 3000
    assert set(files_of.values()) == {1}


def test_an_order_needs_one_file(spark: SparkSession, tmp_path: Path) -> None:
    table = stored(spark, TABLE, tmp_path / "source")
    table.orderBy("d").coalesce(3).write.parquet(str(tmp_path / "table"))
    assert_native(spark)
    (file,) = parquet_files(tmp_path / "table")
    assert pq.read_table(file).column("d").to_pylist() == [1.5 * number for number in range(3000)]


@pytest.mark.parametrize(("files", "tasks"), [(1, 1), (5, 1), (5, 2), (7, 3), (3, 3)])
def test_tasks_share_the_files(files: int, tasks: int) -> None:
    write = WriteFiles("", (), (), files, None, (), (), OneRow())
    shares = [share_files(write, task, tasks) for task in range(tasks)]
    assert sum(share.files or 0 for share in shares if isinstance(share, WriteFiles)) == files
    numbered = replace(write, numbered=True)
    assert share_files(numbered, 0, tasks) == numbered


def count_files(table: Path) -> Counter[str]:
    """The number of files of each folder."""
    return Counter(str(file.parent.relative_to(table)) for file in parquet_files(table))
