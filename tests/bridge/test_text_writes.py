# SPDX-License-Identifier: Apache-2.0
"""Natively written CSV, JSON and ORC files are read back by Spark as those that Spark writes."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.testing.session import conf

ROWS = """SELECT id AS n, CAST(id % 100 AS TINYINT) AS b, id % 2 = 0 AS t, CAST(id / 7 AS DECIMAL(12, 3)) AS m,
 CASE id % 6 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'a,b' WHEN 3 THEN 'é😀' WHEN 4 THEN '#x' ELSE 'NULL' END AS s,
 date_add(DATE'1600-01-01', CAST(id * 100 AS INT)) AS d, IF(id % 5 = 0, NULL, id) AS z, id % 3 AS k FROM range(60)"""


def engine(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return report.engine


def read_back(spark: SparkSession, path: Path, kind: str, schema: str, options: dict[str, str]) -> list[str]:
    with conf(spark, {"spark.volley.enabled": "false"}):
        return sorted(
            map(str, spark.read.options(**options).schema(schema).format(kind).load(str(path)).collect())
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csv", {}),
        ("csv", {"header": "true", "sep": "|", "nullValue": "NULL", "compression": "gzip"}),
        ("json", {}),
        ("json", {"compression": "gzip"}),
        ("orc", {}),
        ("orc", {"compression": "snappy"}),
    ],
    ids=str,
)
def test_files_are_read_back(spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    frame = spark.sql(ROWS)
    schema = frame._jdf.schema().toDDL()
    for partitions in ([], ["k"]):
        native, own = (tmp_path / f"{name}{len(partitions)}" for name in ("native", "own"))
        frame.write.options(**options).partitionBy(*partitions).format(kind).save(str(native))
        assert engine(spark) == "native"
        with conf(spark, {"spark.volley.enabled": "false"}):
            frame.write.options(**options).partitionBy(*partitions).format(kind).save(str(own))
        rows = read_back(spark, native, kind, schema, options)
        assert rows == read_back(spark, own, kind, schema, options)
        assert len(rows) == 60
        suffixes = ["".join(file.suffixes) for place in (native, own) for file in place.rglob("part-*")]
        assert (
            len({suffix[suffix.index(".c000") :] if ".c000" in suffix else suffix for suffix in suffixes})
            == 1
        )


VALUES = """SELECT id AS n, -id AS m, id / 7 AS x, CAST(id / 3 AS FLOAT) AS f,
 timestamp_micros(id * 1234567891234) AS t,
 CASE id WHEN 3 THEN double('NaN') WHEN 4 THEN -double('Infinity') WHEN 5 THEN NULL WHEN 6 THEN -0D
 ELSE 1e20 * id END AS w,
 date_add(DATE'2020-01-01', CAST(id AS INT)) AS d, CAST(id AS DECIMAL(10, 2)) / -100 AS q, id % 2 = 0 AS b, id % 2 AS k
 FROM range(200)"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csv", {}),
        ("json", {}),
        ("csv", {"timestampFormat": "dd/MM/yyyy HH:mm", "header": "true"}),
        ("json", {"timestampFormat": "'a\"b' yyyy"}),
        # Characters of numbers, dates and booleans.
        *(("csv", {"sep": separator}) for separator in "-.1Nt"),
    ],
    ids=str,
)
def test_files_have_the_same_lines(
    spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, str]
) -> None:
    frame = spark.sql(VALUES).coalesce(1)
    with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        frame.write.options(**options).partitionBy("k").format(kind).save(str(tmp_path / "native"))
        assert engine(spark) == "native"
        with conf(spark, {"spark.volley.enabled": "false"}):
            frame.write.options(**options).partitionBy("k").format(kind).save(str(tmp_path / "own"))
    for k in "01":
        native, own = (
            sorted(
                line
                for file in (tmp_path / name / f"k={k}").glob("part-*")
                for line in file.read_bytes().splitlines(keepends=True)
            )
            for name in ("native", "own")
        )
        assert native == own


def test_texts_of_numbers_without_a_jvm(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).selectExpr("id", "id / 3 AS x").groupBy("id").agg({"x": "max"}).toDF("id", "x")
    with conf(spark, {"spark.volley.jvmExpressions": "off"}):
        frame.write.csv(str(tmp_path / "t"))
    assert engine(spark) in ("mixed", "spark")
    assert read_back(spark, tmp_path / "t", "csv", "id bigint, x double", {}) == sorted(
        map(str, frame.collect())
    )


@pytest.mark.parametrize("kind", ["csv", "json", "orc"])
def test_no_rows(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    frame = spark.sql(ROWS).where("n < 0")
    options = {"header": "true"} if kind == "csv" else {}
    frame.write.format(kind).options(**options).save(str(tmp_path / "t"))
    assert engine(spark) == "native"
    assert read_back(spark, tmp_path / "t", kind, frame._jdf.schema().toDDL(), options) == []


TEXTS = [
    " x",
    "x ",
    'a"b',
    "a\\b",
    "a\nb",
    "a\rb",
    "\t",
    "a\x01b",
    "x\u2028",
    "'",
    "a''b",
    "}",
    "/",
    "\x7f",
    "#",
    "NULL",
]


@pytest.mark.slow
def test_texts_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    """Each text is written natively or by Spark, and read back the same as if Spark had written it."""
    engines = {}
    for kind in ("csv", "json", "orc"):
        for number, text in enumerate(TEXTS):
            frame = spark.createDataFrame(pa.table({"a": [text, None], "n": [1, 2]}))
            paths = [tmp_path / f"{kind}{number}{name}" for name in ("native", "own")]
            frame.write.format(kind).save(str(paths[0]))
            engines[kind, text] = engine(spark)
            with conf(spark, {"spark.volley.enabled": "false"}):
                frame.write.format(kind).save(str(paths[1]))
            rows = [read_back(spark, path, kind, "a string, n bigint", {}) for path in paths]
            assert rows[0] == rows[1], (kind, text)
    assert engines["json", "a\nb"] == engines["orc", "a\nb"] == engines["csv", 'a"b'] == "native"
    assert engines["csv", "a\nb"] == "spark"


@pytest.mark.parametrize(
    ("kind", "separator"), [("csv", ","), ("csv", "|"), ("csv", "\t"), ("csv", "a"), ("json", ",")]
)
def test_random_texts(spark: SparkSession, tmp_path: Path, kind: str, separator: str) -> None:
    """Quotes, backslashes, separators, comments, white space and control characters, anywhere in a text."""
    draw = random.Random(7)
    letters = "ab\",|\\ #'\t\x01\x1f\x7f\xa0é" + ("\n\r\b\f\x00" if kind == "json" else "")
    texts = ["".join(draw.choices(letters, k=draw.randrange(7))) for _ in range(1500)]
    if separator == "\t":
        # Whether Spark quotes such texts depends on what it trims.
        texts = [text.strip("\t\x01\x1f ") for text in texts]
    frame = spark.createDataFrame(pa.table({"a": texts, "b": [*texts[1:], None]})).coalesce(1)
    options = {"header": "true", "sep": separator} if kind == "csv" else {}
    frame.write.options(**options).format(kind).save(str(tmp_path / "native"))
    assert engine(spark) == "native"
    with conf(spark, {"spark.volley.enabled": "false"}):
        frame.write.options(**options).format(kind).save(str(tmp_path / "own"))
    native, own = (
        [file.read_bytes() for file in (tmp_path / name).glob("part-*")] for name in ("native", "own")
    )
    assert native == own


def test_types_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    def write(frame: DataFrame, kind: str, name: str) -> str:
        frame.write.format(kind).save(str(tmp_path / name))
        return engine(spark)

    local = spark.sql("SELECT 1 AS a, timestamp_ntz'2024-01-01' AS t")
    assert write(local, "csv", "a") == write(local, "json", "b") == "spark"
    assert write(spark.range(3).selectExpr("id", "id / 3 AS x"), "orc", "c") == "native"
    with conf(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        assert write(spark.sql("SELECT 1 AS a, DATE'1500-01-01' AS d"), "csv", "g") == "spark"
    assert write(spark.sql("SELECT 1 AS a, timestamp'2024-01-01' AS t"), "orc", "d") == "spark"
    assert write(spark.sql("SELECT 'x' AS a"), "csv", "e") == "spark"
    assert write(spark.sql("SELECT 1 AS a, DATE'1500-01-01' AS d"), "orc", "f") == "spark"
