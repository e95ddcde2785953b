# SPDX-License-Identifier: Apache-2.0
"""File systems that only Spark knows: a reason when the query is planned, and Spark's rows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


@pytest.fixture(scope="module")
def other(spark_session: SparkSession) -> Iterator[str]:
    """The scheme of a file system that is compiled here. Spark finds it among those that Hadoop keeps."""
    jvm: Any = spark_session._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files("volley.testing").joinpath("OtherFileSystem.java").read_text())
    settings = jvm.org.apache.hadoop.conf.Configuration(spark_session.sparkContext._jsc.hadoopConfiguration())
    settings.setClassLoader(compiler.getClassLoader())
    settings.set("fs.other.impl", "volley.testing.OtherFileSystem")
    opened = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("other:///"), settings)
    yield "other://"
    opened.close()


def test_spark_reads_and_writes(spark: SparkSession, other: str, tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"n": [1, 2, 3], "s": ["a", None, "c"]}), tmp_path / folder / "1.parquet")
    there = f"{other}{tmp_path}/there"
    (reason,) = volley.explain(spark.read.parquet(there)).reasons
    assert reason.reason == "FILE_SYSTEM_NOT_SUPPORTED"
    assert "other: OtherFileSystem" in str(reason)
    for source in ("", "parquet"):
        with conf(spark, {"spark.sql.sources.useV1SourceList": source}):
            spark.read.parquet(there).createOrReplaceTempView("there")
            spark.read.parquet(str(tmp_path / "here")).createOrReplaceTempView("here")
            assert_same_rows(spark, "SELECT s, count(*) FROM there GROUP BY s", native=False)
            assert_same_rows(spark, "SELECT * FROM there JOIN here USING (n) WHERE n > 1", native=False)
    spark.table("here").write.parquet(f"{other}{tmp_path}/new")
    report = volley.last_query(spark)
    assert report is not None
    assert "FILE_SYSTEM_NOT_SUPPORTED" in [reason.reason for reason in report.reasons]
    assert spark.read.parquet(str(tmp_path / "new")).count() == 3
