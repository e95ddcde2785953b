# SPDX-License-Identifier: Apache-2.0
"""File systems that only Spark knows: the JVM reads their files for workers of its process, and Spark for others."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from volley.cluster import LocalCluster
from volley.testing.java_classes import compile_java
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


@pytest.fixture(scope="module")
def other(spark_session: SparkSession) -> Iterator[str]:
    """The scheme of a file system that is compiled here. Spark finds it among those that Hadoop keeps."""
    jvm: Any = spark_session._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration(spark_session.sparkContext._jsc.hadoopConfiguration())
    settings.setClassLoader(compile_java(spark_session, "OtherFileSystem.java"))
    settings.set("fs.other.impl", "volley.testing.OtherFileSystem")
    opened = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("other:///"), settings)
    yield "other://"
    opened.close()


def write_tables(directory: Path) -> None:
    for folder in ("here", "there"):
        for day in (1, 2):
            (directory / folder / f"day={day} é").mkdir(parents=True)
            rows = pa.table({"n": [1, 2, 3 * day], "s": ["a", None, "c%41"]})
            pq.write_table(rows, directory / folder / f"day={day} é" / "a b%41.parquet")


def test_the_jvm_reads_for_workers_of_its_process(
    distributed: SparkSession, other: str, tmp_path: Path
) -> None:
    spark = distributed
    write_tables(tmp_path)
    for source in ("", "parquet"):
        with conf(spark, {"spark.sql.sources.useV1SourceList": source}):
            spark.read.parquet(f"{other}{tmp_path}/there").createOrReplaceTempView("there")
            spark.read.parquet(str(tmp_path / "here")).createOrReplaceTempView("here")
            assert_same_rows(spark, "SELECT s, day, count(*) FROM there GROUP BY s, day")
            assert_same_rows(spark, "SELECT * FROM there JOIN here USING (n) WHERE n > 1")
            assert_same_rows(spark, "SELECT count(*) FROM there")
    columns = ("n", "_metadata.file_path", "_metadata.file_size", "_metadata.file_modification_time")
    assert_same_rows(spark, spark.read.parquet(f"{other}{tmp_path}/there").select(*columns))
    assert_same_rows(
        spark, spark.read.parquet(f"{other}{tmp_path}/there").selectExpr("n", "input_file_name()")
    )


def test_every_format(spark: SparkSession, other: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{n},x{n}\n" for n in range(300_000)))
    (tmp_path / "a.json").write_text('{"n": 1, "s": "x"}\n{"n": 2}\n')
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"1,a\n2,b\n"))
    (tmp_path / "empty.csv").write_text("")
    orc.write_table(pa.table({"n": [1, 2], "s": ["x", None]}), tmp_path / "a.orc")
    rows = pa.table({"n": range(400_000), "s": [f"{n * 7919}" for n in range(400_000)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100_000, compression="none")
    for name, file_format in {
        "a.csv": "csv",
        "a.csv.gz": "csv",
        "empty.csv": "csv",
        "a.json": "json",
        "a.orc": "orc",
        "a.parquet": "parquet",
    }.items():
        read = spark.read.schema("n bigint, s string").format(file_format).load(f"{other}{tmp_path}/{name}")
        assert_same_rows(spark, read.selectExpr("count(*)", "sum(n)", "max(s)"))
    assert_same_rows(spark, spark.read.text(f"{other}{tmp_path}/a.json"))
    assert_same_rows(spark, spark.read.format("binaryFile").load(f"{other}{tmp_path}/a.json"))


def test_files_that_change_are_left_to_spark(spark: SparkSession, other: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    frame = spark.read.parquet(f"{other}{path}")
    assert_same_rows(spark, frame)
    # Of the same size, but later.
    pq.write_table(pa.table({"n": [4, 5, 6]}), path)
    os.utime(path, (1e9, 1e9))
    assert sorted(row.n for row in frame.filter("n > 0").collect()) == [4, 5, 6]
    assert reasons(spark) == ["REPLAYED_ON_SPARK"]
    path.unlink()
    with pytest.raises(Exception, match=r"a\.parquet"):
        frame.filter("n > 1").collect()


def test_workers_elsewhere_cannot_go_there(
    spark: SparkSession, cluster: LocalCluster, other: str, tmp_path: Path
) -> None:
    write_tables(tmp_path)
    with conf(spark, cluster.settings):
        frame = spark.read.parquet(f"{other}{tmp_path}/there")
        (reason,) = volley.explain(frame).reasons
        assert reason.reason == "FILE_SYSTEM_NOT_SUPPORTED"
        assert "other: OtherFileSystem" in str(reason)
        assert frame.count() == 6


def test_http_is_not_listed_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """So there is no scan to run natively."""
    (tmp_path / "a.csv").write_text("1,2\n")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for enabled in ("false", "true"):
            with (
                conf(spark, {"spark.volley.enabled": enabled}),
                pytest.raises(Exception, match="UNSUPPORTED_FILE_SYSTEM"),
            ):
                spark.read.csv(f"http://127.0.0.1:{server.server_address[1]}/a.csv", schema="a int").collect()
        server.shutdown()


def test_spark_writes(spark: SparkSession, other: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    spark.read.parquet(str(tmp_path / "here")).write.parquet(f"{other}{tmp_path}/new")
    assert "FILE_SYSTEM_NOT_SUPPORTED" in reasons(spark)
    assert spark.read.parquet(str(tmp_path / "new")).count() == 6


def reasons(spark: SparkSession) -> list[str]:
    report = volley.last_query(spark)
    assert report is not None
    return [reason.reason for reason in report.reasons]
