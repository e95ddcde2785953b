# SPDX-License-Identifier: Apache-2.0
"""Dynamic partition pruning: files that no row of a join's small side selects are not read, and no row is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

FILES = 20


@pytest.fixture(scope="module")
def facts(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 20 files for each type of partition column, one of them for NULL, and the small side of joins."""
    directory = tmp_path_factory.mktemp("pruning")
    rows = spark_session.range(FILES * 5).selectExpr(
        "id",
        f"nullif(cast(id % {FILES} AS int), 19) AS number",
        f"concat('p', nullif(id % {FILES}, 19)) AS text",
        f"date_add(DATE'2024-01-01', nullif(cast(id % {FILES} AS int), 19)) AS day",
        f"cast(nullif(id % {FILES}, 19) AS decimal(6,2)) AS amount",
        f"nullif(id % {FILES}, 19) / 2.0D AS real",
    )
    for column in ("number", "text", "day", "amount", "real"):
        kept = rows.select("id", column).coalesce(1)
        kept.write.partitionBy(column).parquet(str(directory / column))
    rows.where(f"id < {FILES}").selectExpr("*", "concat('n', id) AS name").coalesce(1).write.parquet(
        str(directory / "keys")
    )
    return directory


def files_read(spark: SparkSession) -> list[str]:
    report = volley.last_query(spark)
    assert report is not None
    return [text for stage in report.stages for text in stage.decisions if "partition pruning" in text]


def join(facts: Path, column: str, condition: str) -> str:
    return (
        f"SELECT count(*), sum(f.id), min(k.name) FROM parquet.`{facts}/{column}` f "
        f"JOIN parquet.`{facts}/keys` k ON f.{column} = k.{column} WHERE {condition}"
    )


@pytest.mark.parametrize(
    ("condition", "left", "adaptive", "workers"),
    [
        ("k.name = 'n3'", 1, "true", "1"),
        ("k.name IN ('n3', 'n4', 'n19')", 2, "true", "3"),
        ("k.name = 'nobody'", 0, "false", "1"),
        ("k.name = 'nobody'", 0, "true", "3"),
        ("k.name > ''", 19, "false", "3"),
    ],
)
def test_files_are_left_out(
    spark: SparkSession, facts: Path, condition: str, left: int, adaptive: str, workers: str
) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    spark.conf.set("spark.volley.local.workers", workers)
    for key, value in DISTRIBUTED_SETTINGS.items() if workers != "1" else ():
        spark.conf.set(key, value)
    assert_same_rows(spark, join(facts, "number", condition))
    assert files_read(spark) == [f"dynamic partition pruning leaves {left} of {FILES - 1} files to read"]
    report = volley.last_query(spark)
    assert report is not None
    assert report.pruned_files == FILES - 1 - left


def test_partition_columns_of_every_type(spark: SparkSession, facts: Path) -> None:
    for column in ("number", "text"):
        assert_same_rows(spark, join(facts, column, "k.name IN ('n3', 'n11')"))
        assert files_read(spark), column
    for column, kind in (("day", "DATE"), ("amount", "DECIMAL(6,2)"), ("number", "TINYINT")):
        frame = spark.read.schema(f"id BIGINT, {column} {kind}").parquet(str(facts / column))
        frame.createOrReplaceTempView("typed")
        query = join(facts, column, "k.name IN ('n3', 'n11')").replace(f"parquet.`{facts}/{column}`", "typed")
        assert_same_rows(spark, query)
        assert files_read(spark) == ["dynamic partition pruning leaves 2 of 19 files to read"], column


def test_what_is_not_equal_in_the_same_way_is_not_pruned(spark: SparkSession, facts: Path) -> None:
    """Floats have two zeros, and a cast that narrows may make one value of two."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    frame = spark.read.schema("id BIGINT, real DOUBLE").parquet(str(facts / "real"))
    frame.createOrReplaceTempView("reals")
    query = join(facts, "real", "k.name IN ('n0', 'n3')").replace(f"parquet.`{facts}/real`", "reals")
    assert_same_rows(spark, query)
    assert files_read(spark) == []
    narrowed = join(facts, "number", "k.name IN ('n3', 'n11')").replace(
        "f.number = k.number", "cast(f.number + 256 AS tinyint) = cast(k.number AS tinyint)"
    )
    assert_same_rows(spark, narrowed)
    assert files_read(spark) == []


def test_a_small_side_that_only_spark_reads(spark: SparkSession, facts: Path) -> None:
    """The plan of the keys is checked like any other: without it the join is the same, and all files are read."""
    spark.conf.set("spark.volley.jvmExpressions", "off")
    query = join(facts, "number", "k.name = 'n3' AND soundex(k.name) = 'N300'")
    assert_same_rows(spark, query, native=False)
    assert files_read(spark) == []


def test_two_joins_prune_one_table(spark: SparkSession, facts: Path) -> None:
    query = (
        f"SELECT count(*), sum(f.id) FROM parquet.`{facts}/number` f "
        f"JOIN parquet.`{facts}/keys` a ON f.number = a.number AND a.id BETWEEN 2 AND 6 "
        f"JOIN parquet.`{facts}/keys` b ON f.number = b.number AND b.id BETWEEN 5 AND 9"
    )
    assert_same_rows(spark, query)
    assert len(files_read(spark)) in (1, 2)


def test_a_table_of_few_files_is_not_worth_it(spark: SparkSession, facts: Path) -> None:
    query = join(facts, "number", "k.name = 'n3' AND f.number < 5")
    assert_same_rows(spark, query)
    assert files_read(spark) == []


def test_keys_of_a_join_prune_row_groups_by_their_statistics(spark: SparkSession, tmp_path: Path) -> None:
    numbers = pa.array(range(100_000), pa.int64())
    (tmp_path / "facts").mkdir()
    (tmp_path / "keys").mkdir()
    pq.write_table(pa.table({"k": numbers, "v": numbers}), tmp_path / "facts/f.parquet", row_group_size=5_000)
    some = {"k": numbers[::500], "name": [f"n{number}" for number in range(200)]}
    pq.write_table(pa.table(some), tmp_path / "keys/k.parquet")
    sql = (
        f"SELECT f.k, f.v, k.name FROM parquet.`{tmp_path}/facts` f JOIN parquet.`{tmp_path}/keys` k "
        "ON f.k = k.k WHERE k.name IN ('n101', 'n103')"
    )
    with conf(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        frame = spark.sql(sql)
        rows = sorted(frame.collect())
        report = volley.last_query(spark)
        assert report is not None
        assert report.native
        # Both keys are in one of twenty, and so is what a filter on the names leaves.
        assert report.pruned_row_groups == 19
        assert report.to_dict()["pruned_row_groups"] == 19
        with conf(spark, {"spark.volley.enabled": "false"}):
            assert rows == sorted(spark.sql(sql).collect())
