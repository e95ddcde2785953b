# SPDX-License-Identifier: Apache-2.0
"""Ids, random numbers, samples and row numbers: values that depend on how Spark partitions rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.support.reasons import Reason
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

Frames = Callable[[SparkSession], DataFrame]

COLUMNS = ("*", "monotonically_increasing_id() m", "spark_partition_id() p", "rand(3) r")
VALUES = ", ".join(COLUMNS)
# Rows, and how many there are in a row group.
FILES = {
    "a": (5_000, 700),
    "b": (100, 100),
    "c": (9_000, 1_500),
    "d": (4_000, 4_000),
    "e": (3, 1),
    "f": (0, 1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    first = 0
    for name, (rows, group_rows) in FILES.items():
        ids = range(first, first + rows)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "k": pa.array([None if i % 11 == 0 else i % 7 for i in ids], pa.int32()),
                "s": pa.array([f"{i * i % 1_000_003}" for i in ids], pa.string()),
            }
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=group_rows)
        first += rows
    return folder


@pytest.fixture(params=["128m", "20k"])
def files(request: pytest.FixtureRequest, spark: SparkSession, folder: Path) -> Iterator[SparkSession]:
    """A session with a view of files that Spark reads whole or in parts, several of them in a partition."""
    settings = {
        "spark.sql.files.maxPartitionBytes": request.param,
        "spark.sql.files.openCostInBytes": "1000",
    }
    with conf(spark, settings):
        spark.read.parquet(str(folder)).createOrReplaceTempView("files")
        yield spark


def check(spark: SparkSession, frames: Frames, *, ordered: bool = True) -> pa.Table:
    """A frame is planned once for both: a seed that is not given is that of the plan."""
    return assert_same_rows(spark, frames(spark), ordered=ordered, tolerance=0.0)


def slices(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1_000, 3, 4)


ROWS: dict[str, Frames] = {
    "values": lambda spark: slices(spark).selectExpr(*COLUMNS),
    "no seed": lambda spark: slices(spark).select(F.rand()),
    "arithmetic": lambda spark: slices(spark).selectExpr("cast(1 + 9 * rand(3) as int) + id", "id / rand(4)"),
    "uniform": lambda spark: slices(spark).selectExpr("id % 7 + rand(1)", "-rand(5)", "round(rand(1), 2)"),
    "case": lambda spark: slices(spark).selectExpr("case when rand(1) < 0.5 then 'a' else 'b' end c"),
    "uuid": lambda spark: slices(spark).selectExpr("id", "uuid() u", "uuid(17) v", "rand(null) w"),
    "normal": lambda spark: slices(spark).selectExpr("id", "randn(3) n", "rand(3) u", "randn(null) z"),
    "many normal": lambda spark: spark.range(0, 60_000, 1, 2).selectExpr("id", "randn(5) n"),
    "struct": lambda spark: slices(spark).selectExpr("struct(id, rand(1)) s", "array(rand(1), rand(2)) a"),
    "filtered": lambda spark: slices(spark).where("id % 2 = 1").selectExpr(*COLUMNS),
    "in a filter": lambda spark: slices(spark).where("id > 100 and rand(3) < 0.4 and id < 800"),
    "two in a filter": lambda spark: (
        slices(spark).where("rand(3) < 0.6 and rand(4) < 0.6").selectExpr(*COLUMNS)
    ),
    "nested": lambda spark: (
        slices(spark).selectExpr(*COLUMNS).where("r < 0.5").selectExpr("id", "r", "rand(3) q")
    ),
    "chained": lambda spark: slices(spark).withColumn("a", F.rand(1)).withColumn("b", F.rand(1) + F.col("a")),
    "sample": lambda spark: slices(spark).sample(fraction=0.3, seed=4).selectExpr(*COLUMNS),
    "nothing sampled": lambda spark: slices(spark).sample(fraction=0.0, seed=4),
    "random split": lambda spark: slices(spark).randomSplit([0.3, 0.5, 0.2], seed=7)[1],
    "tablesample": lambda spark: spark.sql(
        "select * from (select * from range(0, 500, 1, 3)) tablesample (20 percent) repeatable (5)"
    ),
    "union": lambda spark: slices(spark).union(spark.range(7)).selectExpr(*COLUMNS),
    "union of values": lambda spark: (
        slices(spark).select(F.rand(3)).union(spark.range(9).select(F.rand(3))).selectExpr("*", "rand(3) q")
    ),
    "union of samples": lambda spark: (
        slices(spark).sample(fraction=0.5, seed=3).union(spark.range(50).sample(fraction=0.3, seed=9))
    ),
    "coalesce": lambda spark: slices(spark).coalesce(3).selectExpr(*COLUMNS),
    "coalesce to one": lambda spark: slices(spark).where("id > 7").coalesce(1).selectExpr(*COLUMNS),
    "generated": lambda spark: (
        slices(spark).selectExpr("id", "explode(sequence(0, id % 3)) e").selectExpr(*COLUMNS)
    ),
    "one row": lambda spark: spark.sql(f"select {VALUES.removeprefix('*, ')}"),
    "no rows": lambda spark: spark.range(0).selectExpr(*COLUMNS),
    "downwards": lambda spark: spark.range(100, -100, -7, 5).selectExpr(*COLUMNS),
    "local rows": lambda spark: spark.sql(f"select {VALUES} from values (1), (2), (3), (null), (5) t(a)"),
    "given rows": lambda spark: spark.createDataFrame(
        [(i, str(i)) for i in range(23)], "a int, b string"
    ).selectExpr(*COLUMNS),
    "joined": lambda spark: (
        slices(spark)
        .withColumn("a", F.monotonically_increasing_id())
        .join(slices(spark).withColumn("b", F.rand(1)), "id")
    ),
    "with itself": lambda spark: (lambda frame: frame.union(frame))(slices(spark).withColumn("a", F.rand(1))),
    "grouped": lambda spark: slices(spark).groupBy((F.rand(3) * 5).cast("int").alias("k")).agg(F.sum("id")),
    "ordered": lambda spark: slices(spark).withColumn("a", F.rand(4)).orderBy("a").limit(7),
    "spark's code": lambda spark: (
        slices(spark)
        .where("date_format(timestamp_seconds(id), 's') > '3'")
        .selectExpr("date_format(timestamp_seconds(id), 'E s')", "rand(1) r")
    ),
}


UNORDERED = {"union of samples", "with itself", "joined", "grouped"}
"""Rows whose order is not that of partitions."""


@pytest.mark.since("4.0")
def test_random_texts(spark: SparkSession) -> None:
    calls = ("randstr(5, 3) a", "randstr(12, 7) b", "randstr(0, 3) c", "randstr(4) d")
    check(spark, lambda session: slices(session).selectExpr("id", *calls))


@pytest.mark.parametrize("name", ROWS)
def test_values_are_those_of_sparks_partitions(spark: SparkSession, name: str) -> None:
    check(spark, ROWS[name], ordered=name not in UNORDERED)


@pytest.mark.parametrize(
    "rows",
    [
        lambda spark: slices(spark).selectExpr(*COLUMNS).limit(7),
        lambda spark: slices(spark).sample(fraction=0.4, seed=4).offset(50).limit(60),
        lambda spark: slices(spark).selectExpr(*COLUMNS).where("r < 0.1").limit(40).selectExpr("id + m", "p"),
        lambda spark: (
            slices(spark).selectExpr(*COLUMNS).limit(300).groupBy("p").agg(F.sum("id")).orderBy("p")
        ),
    ],
)
def test_a_limit_takes_the_rows_of_the_first_partitions(spark: SparkSession, rows: Frames) -> None:
    check(spark, rows)


FILE_ROWS: dict[str, Frames] = {
    "values": lambda spark: spark.sql(f"select {VALUES} from files"),
    "filtered": lambda spark: spark.sql(f"select {VALUES} from files where k > 3 and s like '%7'"),
    "no column": lambda spark: spark.sql("select rand(3), spark_partition_id() from files"),
    "in a filter": lambda spark: spark.sql("select * from files where k > 3 and rand(3) < 0.5"),
    "sample": lambda spark: spark.table("files").sample(fraction=0.1, seed=3).selectExpr("id", "rand(3)"),
    "union": lambda spark: spark.sql(
        f"select {VALUES} from (select * from files where k = 2 union all select id, 1, 'x' from range(5))"
    ),
    "random split": lambda spark: spark.table("files").randomSplit([0.3, 0.7], seed=3)[1],
    "split of floats": lambda spark: (
        spark.sql("select if(id % 2 = 0, 0D, -0D) f, float(k) g, s from files where k < 3")
        .randomSplit([0.5, 0.5], seed=3)[0]
        .selectExpr("cast(f as string) f", "g", "s")
    ),
    "coalesce": lambda spark: spark.table("files").coalesce(2).selectExpr(*COLUMNS),
    "grouped": lambda spark: spark.sql(
        f"select k, max(r), min(m) from (select {VALUES} from files) group by k"
    ),
}


@pytest.mark.parametrize("name", FILE_ROWS)
def test_values_are_those_of_parts_of_files(files: SparkSession, name: str) -> None:
    check(files, FILE_ROWS[name], ordered=name not in UNORDERED)


def test_row_numbers_follow_partitions(files: SparkSession) -> None:
    pytest.importorskip("pandas")
    numbered = files.table("files").where("k > 2").pandas_api()._internal.to_internal_spark_frame
    assert check(files, lambda spark: numbered).num_rows
    check(files, lambda spark: numbered.where("id % 3 = 1"))
    again = files.table("files").pandas_api().iloc[10:300]._internal.to_internal_spark_frame
    assert check(files, lambda spark: again).num_rows == 290


def test_several_workers_compute_the_same(files: SparkSession) -> None:
    with conf(files, DISTRIBUTED_SETTINGS | {"spark.volley.local.workers": "3"}):
        check(files, FILE_ROWS["grouped"], ordered=False)
        check(files, ROWS["joined"], ordered=False)


def test_an_early_end_stops_the_partitions(files: SparkSession) -> None:
    with conf(files, {"spark.volley.enabled": "true"}):
        assert len(files.sql(f"select {VALUES} from files").limit(3).collect()) == 3
    report = volley.last_query(files)
    assert report is not None
    assert report.engine == "native"


LEFT_TO_SPARK: dict[str, Frames] = {
    "after an exchange": lambda spark: slices(spark).repartition(3).selectExpr(*COLUMNS),
    "after a sort": lambda spark: slices(spark).orderBy(F.desc("id")).selectExpr(*COLUMNS),
    "after an aggregate": lambda spark: slices(spark).groupBy("id").count().selectExpr(*COLUMNS),
    "after a join": lambda spark: slices(spark).join(slices(spark), "id").selectExpr(*COLUMNS),
    "one partition beside another": lambda spark: (
        spark.range(0, 5, 1, 1).union(spark.range(0, 5, 1, 1)).selectExpr(*COLUMNS)
    ),
    "for some rows": lambda spark: slices(spark).selectExpr("case when id > 5 then rand(1) end"),
    "for the rows that are left": lambda spark: slices(spark).selectExpr(
        "case when rand(1) < 0.5 then 1 when rand(1) < 0.7 then 2 end c"
    ),
    "after a NULL": lambda spark: slices(spark).selectExpr("nullif(id, 3) + rand(1)"),
    "over a divisor": lambda spark: slices(spark).selectExpr("rand(1) / nullif(id + 1, 4)"),
    "in an option": lambda spark: slices(spark).selectExpr("coalesce(nullif(id, 3), rand(1))"),
    "with replacement": lambda spark: slices(spark).sample(True, 0.5, 3),
    "limit before coalesce": lambda spark: slices(spark).limit(20).coalesce(2).selectExpr(*COLUMNS),
}


@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_spark_computes_what_is_not_certain(spark: SparkSession, name: str) -> None:
    with conf(spark, {"spark.volley.enabled": "true"}):
        explained = volley.explain(LEFT_TO_SPARK[name](spark))
    assert Reason.NONDETERMINISTIC in {reason.reason for reason in explained.reasons}
    assert_same_rows(spark, LEFT_TO_SPARK[name](spark), ordered=False, native=False, tolerance=0.0)


def test_a_filter_that_a_scan_may_apply_first_is_sparks(files: SparkSession) -> None:
    with conf(files, {"spark.volley.enabled": "true"}):
        explained = volley.explain(files.sql("select * from files where rand(3) < 0.5 and k > 3"))
    assert not explained.native
