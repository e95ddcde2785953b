# SPDX-License-Identifier: Apache-2.0
"""CSV files of every kind give Spark's rows: natively where the file is plain, otherwise on Spark, with a reason."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.spark_versions.registry import current
from volley.testing.rows import assert_same_rows

SCHEMA = "a string, b int, c date"
PLAIN = b'x,1,2024-01-31\n\n"y, ""z,",,\n'.replace(b'""', b"")
BIG = b"k" * (5 * 2**20)

SEVERAL_LINES = {"multiLine": "true"}
TRIMMED = {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}

NATIVE: dict[str, tuple[bytes, dict[str, str]]] = {
    "plain": (PLAIN, {}),
    "empty file": (b"", {}),
    "blank lines": (b"\n\r\n   \n\nx,1,2024-01-31\n"[6:], {}),
    "header": (b"a,b,c\n" + PLAIN, {"header": "true"}),
    "blank lines before the header": (b"\n\n  \na,b,c\nx,1,\n", {"header": "true"}),
    "header alone": (b"a,b,c", {"header": "true"}),
    "mark at the start": (b"\xef\xbb\xbfx,1,\n", {}),
    "mark and header": (b"\xef\xbb\xbfa,b,c\nx,1,\n", {"header": "true"}),
    "windows": (b'x,1,2024-01-31\r\n"y",2,\r\n', {}),
    "no line end": (b"x,1,2024-01-31", {}),
    "quotes as in RFC 4180": (b'"a ""b""",1,\n"""",2,\n"","3",""\n', {"escape": '"'}),
    "backslashes": (b"a\\,1,\n\\\\n,2,\n", {}),
    "no quotes": (b'"a,1,\nb"c,2,\n', {"quote": ""}),
    "tabs": (b"x\t1\t2024-01-31\n", {"sep": "\\t"}),
    "bars": (b"x|1|2024-01-31|\n", {"delimiter": "|"}),
    "comments": (b"# a\nx,1,\n#b,2,\ny,3,\n", {"comment": "#"}),
    "nulls": (b'NA,NA,NA\n"NA",1,\n"",2,\n', {"nullValue": "NA"}),
    "empty values": (b'"",1,\n,2,\n', {"emptyValue": "e", "nullValue": "n"}),
    "short lines": (b"x,1\ny,2\n", {}),
    "one column": (b"x\n\ny\n", {}),
    "white space": (b" \nx,1,\n  \r\n\t\ny,2,\n \n", {}),
    "white space, one column": (b" \nx\n\t\n\ny\n ", {"sep": "|"}),
    "white space that separates": (b"x\t1\t\n\t\t\ny\t2\t\n", {"sep": "\t"}),
    "fail fast": (PLAIN, {"mode": "FAILFAST"}),
    "drop malformed": (PLAIN, {"mode": "DROPMALFORMED"}),
    "formats": (PLAIN, {"dateFormat": "yyyy-MM-dd", "timestampFormat": "dd/MM/yyyy"}),
    "field larger than a block": (b"x,1,\n" + BIG + b",2,\ny,3,\n", {}),
    "other characters": ("é\u2028😀,1,\n".encode(), {}),
    "trimmed": (b" x , 1 , 2024-01-31 \n y,2 ,\n , , \n", TRIMMED),
    "trimmed at the start": (b" x , 1, 2024-01-31\n  ,2,\n", {"ignoreLeadingWhiteSpace": "true"}),
    "trimmed at the end": (b" x ,1 ,2024-01-31 \ny, ,\n", {"ignoreTrailingWhiteSpace": "true"}),
    "trimmed, quotes without white space": (b'"x y",1,\n"",2,\n"a,b",3,2024-01-31\n', TRIMMED),
    "trimmed nulls": (b" NA , NA,NA\nx,1 ,NA \n,2,\n", {**TRIMMED, "nullValue": "NA"}),
    "trimmed nulls and empty values": (b" NA ,1,\n,2,\n", {**TRIMMED, "nullValue": "NA", "emptyValue": "NA"}),
    "several lines": (b'"a\nb",1,\n"\n\n  \n",2,\n\n\n"c",,2024-01-31\n', SEVERAL_LINES),
    "several lines, windows": (b'"a\r\nb",1,\r\n\r\nc,2,\r\n', SEVERAL_LINES),
    "several lines, header": (b'\n"a\n",b,c\n"x\ny",1,\n', {**SEVERAL_LINES, "header": "true"}),
    "several lines, header alone": (b'"a\n",b,c', {**SEVERAL_LINES, "header": "true"}),
    "several lines as in RFC 4180": (b'"a ""b\n""",1,\n"\n",2,\n', {**SEVERAL_LINES, "escape": '"'}),
    "several lines, short": (b'"a\nb",1\n"c\n",2\n', SEVERAL_LINES),
    "several lines, one column": (b'"a\nb"\n  \n\n""\nc', SEVERAL_LINES),
    "several lines, none": (b"\n\n", SEVERAL_LINES),
    "several lines, no quotes": (b"x,1,\ny,2,\n", {**SEVERAL_LINES, "quote": ""}),
    "several lines, comments inside": (b'"a # b",1,\nc#,2,\n', {**SEVERAL_LINES, "comment": "#"}),
    "several lines, mark": (b'\xef\xbb\xbf"x\ny",1,\n', SEVERAL_LINES),
    "several lines, larger than a block": (b'x,1,\n"' + BIG + b"\n" + BIG + b'",2,\ny,3,\n', SEVERAL_LINES),
    "several lines, another encoding": (
        '"é\nü",1,\n\x85,2,\n'.encode("latin-1"),
        {**SEVERAL_LINES, "encoding": "ISO-8859-1"},
    ),
    "another encoding": ("é,1,\nÿ\x85\xa0,2,\n".encode("latin-1"), {"charset": "iso-8859-1"}),
    "another encoding, mark": (b"\xef\xbb\xbfx,1,\n\xff,2,\n", {"encoding": "ISO-8859-1"}),
    "ASCII": (b"x,1,\ny,2,\n", {"encoding": "US-ASCII"}),
    "trimmed header": (b" a , b , c \n x , 1 , \n", {**TRIMMED, "header": "true"}),
}

ON_SPARK: dict[str, tuple[bytes, dict[str, str]]] = {
    "not a number": (b"x,one,2024-01-31\ny,2,\n", {}),
    "not a number, dropped": (b"x,one,2024-01-31\ny,2,\n", {"mode": "DROPMALFORMED"}),
    "not a number, refused": (b"x,one,2024-01-31\ny,2,\n", {"mode": "FAILFAST"}),
    "space before a number": (b"x, 1,\n", {}),
    "plus": (b"x,+1,\n", {}),
    "no such day": (b"x,1,2023-02-29\n", {}),
    "short date": (b"x,1,2024-1-1\n", {}),
    "lines of several widths": (b"x,1\ny,2,2024-01-31\nz\n", {}),
    "lines of several widths, refused": (b"x,1\ny,2,2024-01-31\nz\n", {"mode": "FAILFAST"}),
    "long line, dropped": (b"x,1,,\ny,2,\n", {"mode": "DROPMALFORMED"}),
    "quote inside": (b'a"b"c,1,\n', {}),
    "text after a quote": (b'"a"b,1,\n', {}),
    "space after a quote": (b'"a" ,1,\n', {}),
    "doubled quotes": (b'"a""b",1,\n', {}),
    "escaped quotes": (b'"a\\"b",1,\n', {}),
    "open quote": (b'"a,1,\nb,2,\n', {}),
    "line end in quotes": (b'"a\nb",1,\n', {}),
    "old line ends": (b"x,1,\ry,2,\r", {}),
    "line end given": (b"x,1,\r\ny,2,\n", {"lineSep": "\n"}),
    "NUL": (b"x\x00y,1,\n", {}),
    "invalid UTF-8": (b"\xff\xfe,1,\n", {}),
    "several lines and line ends": (b'"a\r\nb",1,\n', SEVERAL_LINES),
    "several lines, open quote": (b'x,1,\n"a\nb,1,\n', SEVERAL_LINES),
    "several lines, blank line": (b"x,1,\n  \ny,2,\n", SEVERAL_LINES),
    "several lines, comment": (b"# a\nx,1,\n", {**SEVERAL_LINES, "comment": "#"}),
    "several lines, trimmed": (b'"\na",1,\n', {**SEVERAL_LINES, **TRIMMED}),
    "several lines, mark of UTF-8": (
        b"\xef\xbb\xbfx,1,\n\xc3\xa9,2,\n",
        {**SEVERAL_LINES, "encoding": "ISO-8859-1"},
    ),
    "several lines, mark of UTF-16": ("\ufeffx,1,\n".encode("utf-16-be"), SEVERAL_LINES),
    "beyond ASCII": (b"x,1,\n\xe9,2,\n", {"encoding": "US-ASCII"}),
    "wide characters": ("x,1,\n".encode("utf-16-le"), {"encoding": "UTF-16LE"}),
    "two characters": (b"x||1||\n", {"sep": "||"}),
    "trimmed, quotes and white space": (b'"x" ,1,\ny, "2",\n', TRIMMED),
    "trimmed, quoted white space": (b'" x ",1,\n', TRIMMED),
    "trimmed comments": (b" # a\nx, 1,\n", {**TRIMMED, "comment": "#"}),
    "trimmed at the end, blank field": (b"x,1,\n ,2,\n", {"ignoreTrailingWhiteSpace": "true"}),
    "another date": (b"x,1,31.1.2024\n", {"dateFormat": "d.M.yyyy"}),
    "header that is checked": (b"a,b,z\nx,1,\n", {"header": "true", "enforceSchema": "false"}),
}


def read(path: Path, options: dict[str, str], schema: str = SCHEMA) -> Any:
    return lambda session: session.read.options(**options).schema(schema).csv(str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.csv"


# The rest needs more time than the default suite has.
QUICK = {
    "plain",
    "mark and header",
    "windows",
    "quotes as in RFC 4180",
    "comments",
    "nulls",
    "several lines",
    "several lines, windows",
    "several lines, header",
    "another encoding",
    "short lines",
    "white space",
}
QUICK |= {
    "not a number, refused",
    "lines of several widths",
    "doubled quotes",
    "line end in quotes",
    "several lines, blank line",
    "NUL",
    "trimmed",
}
SELECTIONS = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.parametrize("slow", SELECTIONS)
def test_plain_files_are_read_natively(spark: SparkSession, file: Path, slow: bool) -> None:
    for name, (data, options) in NATIVE.items():
        if (name in QUICK) == slow:
            continue
        file.write_bytes(data)
        try:
            assert_same_rows(spark, read(file, options), ordered=True)
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("slow", SELECTIONS)
def test_other_files_are_read_by_spark(spark: SparkSession, file: Path, slow: bool) -> None:
    for name, (data, options) in ON_SPARK.items():
        if (name in QUICK) == slow:
            continue
        file.write_bytes(data)
        build = read(file, options)
        spark.conf.set("spark.volley.enabled", "false")
        expected = outcome(build, spark)
        spark.conf.set("spark.volley.enabled", "true")
        assert outcome(build, spark) == expected, name
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "spark", name
        assert report.reasons, name


def outcome(build: Any, spark: SparkSession) -> Any:
    try:
        return build(spark).collect()
    except Exception as error:
        return type(error).__name__


def test_malformed_records_are_recorded_by_spark(spark: SparkSession, file: Path) -> None:
    schema = f"{SCHEMA}, _corrupt_record string"
    file.write_bytes(b"x,1,2024-01-31\ny,2,\n")
    assert_same_rows(spark, read(file, {}, schema))
    renamed = {"columnNameOfCorruptRecord": "bad"}
    assert_same_rows(spark, read(file, renamed, f"{SCHEMA}, bad string"))
    file.write_bytes(b"x,1,2024-01-31\ny,two,\nz\n")
    rows = assert_same_rows(spark, read(file, {}, schema), native=False)
    assert rows.column(3).to_pylist() == [None, "y,two,", "z"]


def test_rows_of_an_iterator_are_checked_before_the_first_one(spark: SparkSession, file: Path) -> None:
    # The second line is in another block.
    file.write_bytes(BIG + b",1,\ny,two,\n")
    rows = [(len(row.a), row.b) for row in read(file, {})(spark).toLocalIterator()]
    assert rows == [(len(BIG), 1), (1, None)]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"


def test_queries_over_csv_files(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for day in ("2024-01-01", "2024-01-02"):
        folder = table / f"day={day}"
        folder.mkdir(parents=True)
        for number in range(3):
            lines = [f'{n},"text {n}, {number}",{n / 8},{n % 7 == 0}' for n in range(200)]
            (folder / f"{number}.csv").write_text("\n".join(["n,s,x,b", *lines]))
    view = spark.read.option("header", "true").schema("n bigint, s string, x double, b boolean, day date")
    view.csv(str(table)).createOrReplaceTempView("t")
    for query in (
        "SELECT * FROM t",
        "SELECT count(*) FROM t",
        "SELECT day, count(*) FROM t GROUP BY day",
        "SELECT s, n FROM t WHERE n > 10 AND b",
        "SELECT day, sum(n), max(x), count(DISTINCT s) FROM t WHERE day > '2024-01-01' GROUP BY day",
        "SELECT a.s FROM t a JOIN t b ON a.n = b.n AND a.day = b.day WHERE b.b",
        "SELECT n, row_number() OVER (PARTITION BY day ORDER BY n, s) FROM t",
    ):
        assert_same_rows(spark, query)


def test_lines_are_counted_without_being_parsed(spark: SparkSession, file: Path) -> None:
    file.write_bytes(b'a,b\n\n"x\n \n#y"z\ny,,,,\n\t\r\nz')
    for header in ("true", "false"):
        for comment in ("", "#"):
            options = {"header": header, "comment": comment}
            rows = assert_same_rows(spark, read(file, options)(spark).groupBy().count())
            assert rows.num_rows == 1
    refused = read(file, {"mode": "DROPMALFORMED"})(spark).groupBy().count()
    assert_same_rows(spark, refused, native=False)


def test_compressed_files(spark: SparkSession, tmp_path: Path) -> None:
    data = b"a,b,c\n" + b"x,1,2024-01-31\n" * 3000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(data[:60]) + gzip.compress(data[60:]))
    (tmp_path / "b.csv.bz2").write_bytes(bz2.compress(data))
    (tmp_path / "c.csv").write_bytes(data)
    if current().reads_zstd_text:
        (tmp_path / "d.csv.zst").write_bytes(pa.compress(data, "zstd", asbytes=True))
    header = {"header": "true"}

    def summary(session: SparkSession) -> DataFrame:
        frame: DataFrame = read(tmp_path, header)(session)
        return frame.groupBy("a", "b", "c").count()

    assert_same_rows(spark, summary)
    whole = gzip.compress(data)
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|EOFException"):
        summary(spark).collect()


def test_a_file_is_divided_by_its_bytes(distributed: SparkSession, file: Path) -> None:
    lines = [f'{n},"{"y" * (n % 50)}",{n % 100}' for n in range(60_000)]
    file.write_text("\n".join(["n,s,m", *lines]))
    schema = "n bigint, s string, m int"
    options = {"header": "true"}
    assert_same_rows(
        distributed,
        lambda session: (
            read(file, options, schema)(session).groupBy("m").agg({"n": "sum", "s": "max", "*": "count"})
        ),
    )
