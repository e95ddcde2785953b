# SPDX-License-Identifier: Apache-2.0
"""Options that Spark's formats do not know change nothing: reads and writes with them are native."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from volley.plan.read_rules import READ_RULES
from volley.plan.spark_options import KNOWN_OPTIONS, may_matter
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
ROWS = "SELECT id AS n, concat('a', id) AS s FROM range(20)"
SCHEMA = "n bigint, s string"
IGNORED = {
    "parquet": {
        "foo": "bar",
        "header": "true",
        "multiLine": "nonsense",
        "overwriteSchema": "true",
        "Sep": "|",
    },
    "orc": {"mergeSchema": "false", "header": "true", "datetimeRebaseMode": "nonsense", "encoding": "UTF-16"},
    "csv": {
        "mergeSchema": "nonsense",
        "rowTag": "x",
        "avroSchema": "x",
        "overwriteSchema": "true",
        "wholeText": "true",
    },
    "json": {"header": "true", "sep": "x", "escape": "xyz", "maxColumns": "1"},
}


@pytest.mark.parametrize("sources", ["parquet,orc,csv,json", ""])
@pytest.mark.parametrize("kind", [*sorted(IGNORED), pytest.param(AVRO, marks=pytest.mark.since("4.0"))])
def test_reads(spark: SparkSession, tmp_path: Path, kind: str, sources: str) -> None:
    files = str(tmp_path / "t")
    spark.sql(ROWS).write.format(kind).save(files)
    options = IGNORED.get(kind, {"foo": "bar", "header": "true", "timestampFormat": "nonsense"})
    with conf(spark, {"spark.sql.sources.useV1SourceList": sources}):
        assert_same_rows(
            spark,
            lambda session: session.read.format(kind).options(**options).schema(SCHEMA).load(files),
        )


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("parquet", "timeZone", "UTC"),
        ("parquet", "foo.bar", "1"),
        ("parquet", "parquet.filter.dictionary.enabled", "true"),
        ("orc", "io.file.buffer.size", "4096"),
        ("csv", "maxColumns", "5"),
        ("csv", "CHARTOESCAPEQUOTEESCAPING", "x"),
        ("json", "maxNestingDepth", "5"),
        ("json", "useUnsafeRow", "true"),
    ],
)
def test_what_may_matter(kind: str, option: str, value: str, spark: SparkSession, tmp_path: Path) -> None:
    assert may_matter(kind, option)
    files = str(tmp_path / "t")
    spark.sql(ROWS).write.format(kind).save(files)
    spark.read.format(kind).option(option, value).schema(SCHEMA).load(files).collect()
    report = volley.last_query(spark)
    assert report is not None
    assert f"read option {option}={value}".lower() in str(report.reasons).lower()


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json"])
def test_writes(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with conf(spark, {"spark.volley.fallback": "error"}):
        spark.sql(ROWS).write.options(**IGNORED[kind]).format(kind).save(str(tmp_path / "native"))
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.sql(ROWS).write.options(**IGNORED[kind]).format(kind).save(str(tmp_path / "spark"))
        found, expected = (
            sorted(map(str, spark.read.format(kind).schema(SCHEMA).load(str(tmp_path / name)).collect()))
            for name in ("native", "spark")
        )
    assert found == expected
    spark.sql(ROWS).write.option("hive.what", "1").format(kind).save(str(tmp_path / "other"))
    report = volley.last_query(spark)
    assert report is not None
    assert "option hive.what" in str(report.reasons)


@pytest.mark.since("4.0")
def test_all_options_of_sparks_formats_are_known(spark: SparkSession) -> None:
    """In this release. A new option must not be taken for one that Spark ignores."""
    sql = "org.apache.spark.sql"
    classes = {
        "csv": f"{sql}.catalyst.csv.CSVOptions",
        "json": f"{sql}.catalyst.json.JSONOptions",
        "text": f"{sql}.execution.datasources.text.TextOptions",
        "parquet": f"{sql}.execution.datasources.parquet.ParquetOptions",
        "orc": f"{sql}.execution.datasources.orc.OrcOptions",
        "avro": f"{sql}.avro.AvroOptions",
    }
    for name, java_class in classes.items():
        options = getattr(getattr(spark._jvm, f"{java_class}$"), "MODULE$").getAllOptions()
        iterator = options.iterator()
        while iterator.hasNext():
            assert may_matter(name, iterator.next()), name
    assert KNOWN_OPTIONS.keys() == READ_RULES.keys()
