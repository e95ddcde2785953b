# SPDX-License-Identifier: Apache-2.0
"""Text, binary and ORC files give Spark's rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
from pyspark.sql import SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


def test_lines_of_text(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    for data in (
        b'a\n\n  b,"c\r\n\r\n\xc3\xa9',
        b"",
        b"\n",
        b"\xef\xbb\xbfx\n",
        bytes(range(1, 9)) + b"\n",
        b"x" * 5_000_000,
    ):
        path.write_bytes(data)
        assert_same_rows(spark, lambda session: session.read.text(str(path)), ordered=True)
        assert_same_rows(spark, lambda session: session.read.text(str(path)).groupBy().count())
    for data in (b"a\rb\n", b"\xff\n", b"a\0b\n"):
        path.write_bytes(data)
        assert_same_rows(
            spark, lambda session: session.read.text(str(path)).selectExpr("hex(value)"), native=False
        )
    path.write_bytes(b"a\nb\n")
    assert_same_rows(spark, lambda session: session.read.option("lineSep", "\n").text(str(path)))
    for frame in (spark.read.text(str(path), wholetext=True), spark.read.text(str(path), lineSep="a")):
        assert_same_rows(spark, frame, native=False)
        report = volley.last_query(spark)
        assert report is not None
        assert any("FILE_OPTION" in str(reason) for reason in report.reasons)


def test_binary_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "k=1"
    folder.mkdir()
    (folder / "a b%é.bin").write_bytes(bytes(range(256)))
    (folder / "empty.bin").write_bytes(b"")
    (folder / "text.txt").write_bytes(b"x")
    spark.read.format("binaryFile").option("pathGlobFilter", "*.bin").load(
        str(tmp_path)
    ).createOrReplaceTempView("f")
    assert_same_rows(spark, "SELECT * FROM f")
    assert_same_rows(spark, "SELECT path, length, k FROM f WHERE length > 0")
    assert_same_rows(spark, "SELECT count(*) FROM f")
    with conf(spark, {"spark.sql.sources.binaryFile.maxLength": "255"}):
        assert_same_rows(spark, "SELECT path, length FROM f")


ROWS = """SELECT id AS n, CAST(id AS TINYINT) AS b, CAST(id AS SMALLINT) AS h, CAST(id AS INT) AS i, id % 3 = 0 AS t,
 CAST(id / 7 AS FLOAT) AS f, id / 7 AS x, CAST(id / 7 AS DECIMAL(12, 3)) AS m, CAST(id AS STRING) AS s,
 CAST(CAST(id AS STRING) AS BINARY) AS y, date_add(DATE'1990-01-01', CAST(id AS INT)) AS d,
 IF(id % 5 = 0, NULL, id) AS z, timestamp_micros(id) AS ts, array(id) AS l FROM range(100)"""


def test_orc_files(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(ROWS).repartition(3).write.orc(str(tmp_path / "t"))
    table = spark.read.orc(str(tmp_path / "t"))
    table.createOrReplaceTempView("o")
    assert_same_rows(spark, "SELECT n, b, h, i, t, f, x, m, s, y, d, z FROM o")
    assert_same_rows(
        spark, "SELECT t, count(*), sum(m), max(s), min(d) FROM o WHERE n > 10 AND z IS NOT NULL GROUP BY t"
    )
    assert_same_rows(spark, "SELECT count(*) FROM o")
    spark.read.schema("N bigint, missing string, i bigint").orc(str(tmp_path / "t")).createOrReplaceTempView(
        "p"
    )
    assert_same_rows(spark, "SELECT n, missing FROM p")
    assert_same_rows(spark, "SELECT i FROM p", native=False)
    for column in ("ts", "l"):
        assert_same_rows(spark, f"SELECT {column} FROM o", native=False)
        report = volley.last_query(spark)
        assert report is not None
        assert any(f"column {column}" in str(reason) for reason in report.reasons)


def test_orc_files_of_other_writers(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "file.orc"
    orc.write_table(
        pa.table({"a": [1, None], "s": ["x", None], "d": pa.array([0, -200_000], pa.date32())}), path
    )
    spark.read.orc(str(path)).createOrReplaceTempView("o")
    assert_same_rows(spark, "SELECT a, s FROM o")
    assert_same_rows(spark, "SELECT d FROM o", native=False)
    orc.write_table(pa.table({"_col0": [1, 2], "_col1": ["x", "y"]}), path)
    assert_same_rows(spark, spark.read.schema("a bigint, s string").orc(str(path)), native=False)
    path.write_bytes(b"nonsense")
    with conf(spark, {"spark.sql.files.ignoreCorruptFiles": "true"}):
        assert spark.read.schema("a bigint").orc(str(path)).collect() == []
