# SPDX-License-Identifier: Apache-2.0
"""Native writes: plain Spark reads back what plain Spark would have written, in every mode and with every option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import every
from helpers.writes import PLAIN, assert_native, both, parquet_files, stored
from volley.cluster import LocalCluster
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf

slow = pytest.mark.slow


EVERY_TYPE = """
    select cast(id as tinyint) as b, cast(id * 300 as smallint) as s, cast(id * 70000 as int) as i, id as l,
           cast(id / 3 as float) as f, if(id % 4 = 0, double('nan'), id / -7) as d,
           cast(id * 1.5 as decimal(7, 2)) as small, cast(id as decimal(18, 5)) as middle,
           cast(id * -1.25 as decimal(38, 10)) as wide, id % 2 = 0 as flag,
           if(id % 5 = 0, null, concat('name ', id, ' ü')) as name, encode(cast(id as string), 'utf-8') as raw,
           date_add(date'1581-12-30', cast(id * 9000 as int)) as day,
           timestamp'1899-12-31 23:59:59.123456' + make_dt_interval(cast(id * 3000 as int)) as moment,
           array(cast(id as int), null) as list, named_struct('x', id, 'y', array(cast(id as string))) as pair
    from range(40)
"""


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=slow), "3"])
def test_every_type(spark: SparkSession, tmp_path: Path, workers: str) -> None:
    source = stored(spark, EVERY_TYPE, tmp_path / "source")
    with conf(spark, {"spark.volley.local.workers": workers}):
        both(spark, tmp_path / "all", lambda writer, path: writer.parquet(path), source)
    rows = spark.read.parquet(str(tmp_path / "all" / "volley"))
    with conf(spark, PLAIN):
        assert rows.count() == 40


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_timestamps(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    text = "select timestamp_micros(id * 1234567890123) as t from range(-2000, 2000)"
    frame = stored(spark, text, tmp_path / "source")
    with conf(spark, {"spark.sql.parquet.outputTimestampType": kind}):
        both(spark, tmp_path, lambda writer, path: writer.parquet(path), frame)


@pytest.mark.parametrize(
    "codec", ["zstd", *(pytest.param(c, marks=slow) for c in ("none", "gzip", "lz4_raw"))]
)
def test_codecs(spark: SparkSession, tmp_path: Path, rows: DataFrame, codec: str) -> None:
    both(spark, tmp_path / "option", lambda writer, path: writer.parquet(path, compression=codec), rows)
    with conf(spark, {"spark.sql.parquet.compression.codec": codec}):
        both(spark, tmp_path / "setting", lambda writer, path: writer.save(path, "parquet"), rows)


MODES: dict[str, Callable[[DataFrameWriter, str], Any]] = {
    "append": lambda writer, path: writer.mode("append").parquet(path),
    "overwrite": lambda writer, path: writer.mode("overwrite").parquet(path),
    "append to folders": lambda writer, path: writer.parquet(path, "append", "name"),
    "overwrite folders": lambda writer, path: writer.parquet(path, "overwrite", ["name", "flag"]),
    "overwrite some folders": lambda writer, path: (
        writer.option("partitionOverwriteMode", "dynamic")
        .partitionBy("day", "name")
        .mode("overwrite")
        .parquet(path)
    ),
    "save": lambda writer, path: writer.format("parquet").mode("append").option("path", path).save(),
}


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("mode", every(2, MODES))
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=slow)])
def test_modes(spark: SparkSession, tmp_path: Path, rows: DataFrame, mode: str, workers: str) -> None:
    with conf(spark, {"spark.volley.local.workers": workers}):
        both(
            spark,
            tmp_path,
            MODES[mode],
            rows,
            rows.where("day in (1, 2)").withColumn("id", F.col("id") + 1000),
        )


def test_other_partition_types(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "select id, date_add(date'2024-02-27', cast(id % 3 as int)) as day, cast(id % 2 as decimal(10, 2)) as amount,"
        " id % 2 = 0 as flag, cast(if(id % 5 = 0, null, id % 5) as smallint) as small from range(60)"
    )
    both(
        spark, tmp_path, lambda w, path: w.partitionBy("small", "day", "amount", "flag").parquet(path), frame
    )


def test_names_of_columns_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select id as `A b`, id as `ü,=;`, id % 2 as `P x` from range(6)")
    both(spark, tmp_path, lambda writer, path: writer.partitionBy("p X").parquet(path), frame)


def test_nothing_to_write(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    none = rows.where("id < 0")
    both(spark, tmp_path / "plain", lambda writer, path: writer.parquet(path), none)
    both(spark, tmp_path / "folders", lambda writer, path: writer.partitionBy("name").parquet(path), none)
    both(spark, tmp_path / "gone", lambda writer, path: writer.mode("overwrite").parquet(path), rows, none)


def test_many_files(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    limited = rows.coalesce(1)
    both(spark, tmp_path / "a", lambda w, path: w.option("maxRecordsPerFile", 30).parquet(path), limited)
    for engine in ("spark", "volley"):
        counts = [pq.read_metadata(file).num_rows for file in parquet_files(tmp_path / "a" / engine)]
        assert sorted(counts) == [10, 30, 30, 30]
    with conf(spark, {"spark.sql.files.maxRecordsPerFile": "7"}):
        # One task again: how many files a folder gets depends on how its rows are spread.
        both(spark, tmp_path / "b", lambda w, path: w.partitionBy("day").parquet(path), limited)
    counts = [pq.read_metadata(file).num_rows for file in parquet_files(tmp_path / "b" / "volley")]
    assert max(counts) <= 7


@pytest.mark.usefixtures("distributed")
def test_coalesce_makes_one_file(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    spark.conf.set("spark.volley.local.workers", "3")
    for number, frame in enumerate((rows.coalesce(1), rows.repartition(1))):
        both(spark, tmp_path / str(number), lambda writer, path: writer.parquet(path), frame)
        assert len(parquet_files(tmp_path / str(number) / "volley")) == 1


def test_an_order_is_kept(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    rows.orderBy(F.desc("id")).write.parquet(str(tmp_path / "t"))
    assert_native(spark)
    ids = [id for file in parquet_files(tmp_path / "t") for id in pq.read_table(file)["id"].to_pylist()]
    assert ids == list(range(99, -1, -1))


def test_existing_paths_are_left_to_spark(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = str(tmp_path / "t")
    rows.write.parquet(path)
    before = parquet_files(tmp_path / "t")
    with conf(spark, {"spark.volley.fallback": "error"}):
        with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
            rows.write.parquet(path)
        rows.write.mode("ignore").parquet(path)
    assert parquet_files(tmp_path / "t") == before


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        pytest.param(
            lambda rows, path: rows.write.format("xml").option("rowTag", "row").save(path),
            "FILE_FORMAT_NOT_SUPPORTED",
            marks=pytest.mark.since("4.1"),  # before, such a writer does not give its command
        ),
        (lambda rows, path: rows.write.option("parquet.block.size", "1000000").parquet(path), "FILE_OPTION"),
        (lambda rows, path: rows.write.parquet(path, compression="lz4"), "FILE_OPTION_NOT_SUPPORTED"),
        (lambda rows, path: rows.write.format("noop").mode("append").save(), "ACTION_NOT_SUPPORTED"),
        (
            lambda rows, path: rows.selectExpr("id", "id / 7 as p").write.partitionBy("p").parquet(path),
            "CAST",
        ),
    ],
)
def test_what_spark_writes(
    spark: SparkSession, tmp_path: Path, rows: DataFrame, write: Callable[..., None], reason: str
) -> None:
    write(rows, str(tmp_path / "t"))
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert reason in str(report.reasons[0])


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = tmp_path / "t"
    rows.write.parquet(str(path))
    before = parquet_files(path)
    broken = rows.selectExpr("id", "id / if(id = 77, 0, 1) as q", "name")
    with conf(spark, {"spark.sql.ansi.enabled": "true"}), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        broken.write.mode("append").parquet(str(path))
    assert parquet_files(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_partition_values_that_are_in_no_path(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select id, concat('a', chr(0)) as p from range(3)")
    with pytest.raises(Exception, match="TASK_WRITE_FAILED"):
        frame.write.partitionBy("p").parquet(str(tmp_path / "t"))


def test_a_cached_table_sees_new_rows(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = str(tmp_path / "t")
    rows.write.parquet(path)
    cached = spark.read.parquet(path).cache()
    try:
        assert cached.count() == 100
        rows.write.mode("append").parquet(path)
        assert_native(spark)
        assert spark.read.parquet(path).count() == 200
    finally:
        cached.unpersist()


def test_workers_write(spark: SparkSession, tmp_path: Path, rows: DataFrame, cluster: LocalCluster) -> None:
    """Daemons write their shares themselves; none of the rows passes the driver."""
    with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
        by_name = rows.groupBy("day", "name").agg(F.sum("id").alias("total"))
        both(spark, tmp_path, lambda writer, path: writer.partitionBy("day").parquet(path), by_name)
        report = volley.last_query(spark)
        assert report is not None
        assert report.rows == 70


def test_the_footer_of_arrow_is_not_written(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    rows.write.parquet(str(tmp_path / "t"))
    (file, *_) = parquet_files(tmp_path / "t")
    assert b"ARROW:schema" not in (pq.read_metadata(file).metadata or {})
    assert isinstance(pq.read_schema(file), pa.Schema)
