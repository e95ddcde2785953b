# SPDX-License-Identifier: Apache-2.0
"""Avro files give Spark's rows, natively where their schema and their bytes have one meaning.

PySpark's package has the format, but not the name that its jar `spark-avro` registers: tests use the name of its class.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from helpers.avro_files import CODECS, MARKER, avro_file, encode, encode_bytes, raw_block, raw_file, record
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.0")

AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
ROWS = """SELECT id AS n, CAST(id AS INT) AS i, IF(id % 7 = 0, NULL, id % 3 = 0) AS t, CAST(id / 7 AS FLOAT) AS f,
 id / 7 AS x, CAST(id / 7 AS DECIMAL(12, 3)) AS m, CAST(-id * 1000 AS DECIMAL(38, 10)) AS w,
 CAST(id - 50 AS DECIMAL(2, 0)) AS p, concat('é', id) AS s, CAST(CAST(id AS STRING) AS BINARY) AS y,
 date_add(DATE'1990-01-01', CAST(id AS INT)) AS d, IF(id % 5 = 0, NULL, id) AS z,
 timestamp_micros(id * 1000003) AS ts, TIMESTAMP_NTZ'2020-01-01 00:00:00.5' AS ntz, array(id, NULL) AS l,
 array(array(id), array(), NULL) AS ll, NULL AS u,
 IF(id % 4 = 0, NULL, named_struct('a', id, 'B', array(named_struct('c', CAST(id AS STRING), 'e', id % 2 = 0)))) AS st
 FROM range(100)"""


def read(*paths: Path, schema: str = "", **options: str) -> Callable[[SparkSession], DataFrame]:
    def read_files(session: SparkSession) -> DataFrame:
        reader = session.read.format(AVRO).options(**options)
        return (reader.schema(schema) if schema else reader).load([str(path) for path in paths])

    return read_files


def reasons(spark: SparkSession) -> str:
    report = volley.last_query(spark)
    assert report is not None
    return str(report.reasons)


def test_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    files = str(tmp_path / "t")
    spark.sql(ROWS).repartition(3).write.format(AVRO).save(files)
    spark.read.format(AVRO).load(files).createOrReplaceTempView("a")
    assert_same_rows(spark, "SELECT * FROM a")
    assert_same_rows(spark, "SELECT s, st.B FROM a WHERE z > 10 AND st.a < 50 AND t")
    assert_same_rows(spark, "SELECT count(*) FROM a")
    assert_same_rows(spark, "SELECT t, count(*), sum(m), max(s), min(d) FROM a GROUP BY t")


@pytest.mark.parametrize("codec", ["uncompressed", "deflate", "bzip2", "xz", "zstandard"])
def test_compressions(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    files = str(tmp_path / "t")
    spark.sql(ROWS).write.format(AVRO).option("compression", codec).save(files)
    assert_same_rows(spark, lambda session: session.read.format(AVRO).load(files))


@pytest.mark.since("4.1")
def test_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format(AVRO).save(str(tmp_path / "t"))
    assert "FILE_FORMAT_NOT_SUPPORTED" in reasons(spark)


def test_files_in_partitions(spark: SparkSession, tmp_path: Path) -> None:
    files = str(tmp_path / "t")
    spark.sql(f"SELECT *, n % 3 AS k FROM ({ROWS})").write.format(AVRO).partitionBy("k").save(files)
    frame = spark.read.format(AVRO).load(files)
    assert_same_rows(spark, frame.where("k > 0").select("k", "n", "_metadata.file_size"))
    assert_same_rows(spark, frame.selectExpr("n", "input_file_name()"))


def test_parts_of_files(spark: SparkSession, tmp_path: Path) -> None:
    """Each block is read by one task, by the same as in Spark where values depend on its partitions."""
    schema = record(n="long", s="string")
    blocks = [[{"n": 10 * block + row, "s": "x" * block} for row in range(3)] for block in range(40)]
    for codec in CODECS:
        (tmp_path / f"{codec}.avro").write_bytes(avro_file(schema, blocks, codec))
    size = (tmp_path / "null.avro").stat().st_size
    for part in (16, 17, 61, size // 2, size - 20, size):
        with conf(
            spark, {"spark.sql.files.maxPartitionBytes": str(part), "spark.sql.files.openCostInBytes": "0"}
        ):
            spark.read.format(AVRO).load(str(tmp_path)).createOrReplaceTempView("a")
            assert_same_rows(spark, "SELECT n, s, spark_partition_id(), monotonically_increasing_id() FROM a")


def test_large_files_are_divided(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(200_000).selectExpr("id", "repeat(hex(hash(id)), 16) AS s").coalesce(1).write.format(
        AVRO
    ).option("compression", "uncompressed").save(str(tmp_path / "t"))
    spark.read.format(AVRO).load(str(tmp_path / "t")).createOrReplaceTempView("a")
    assert_same_rows(spark, "SELECT count(*), count(DISTINCT id), sum(id), max(s), min(s) FROM a")


# ---------------------------------------------------------------------------------------------- schemas of others

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
FIXED_DECIMAL = {
    "type": "fixed",
    "name": "d",
    "size": 3,
    "logicalType": "decimal",
    "precision": 6,
    "scale": 1,
}
ENUM = {"type": "enum", "name": "e", "symbols": ["ONE", "TWO"]}
NODE = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}


def logical(kind: str, meaning: str) -> dict[str, str]:
    return {"type": kind, "logicalType": meaning}


COLUMNS: dict[str, tuple[Any, list[Any], bool]] = {
    # The schema, values, and whether it is native.
    "bytes_decimal": (DECIMAL, [b"\x01", b"\xff", b"\0" * 12 + b"\x05", b"\x7f" * 8], True),
    "fixed_decimal": (FIXED_DECIMAL, [b"\xff\xff\xfe", b"\0\0\1"], True),
    "narrow_decimal": ({**FIXED_DECIMAL, "size": 1, "precision": 2}, [b"\x01", b"\xff"], True),
    "enum": (ENUM, [0, 1], True),
    "optional_enum": (["null", ENUM], [(1, 1), (0, None)], True),
    "fixed": ({"type": "fixed", "name": "x", "size": 2}, [b"ab", b"\xff\0"], True),
    "uuid": (logical("string", "uuid"), ["x", "6f9619ff-8b86-d011-b42d-00c04fc964ff"], True),
    "fixed_uuid": ({**logical("fixed", "uuid"), "name": "q", "size": 16}, [b"\xff" * 16], True),
    "duration": ({**logical("fixed", "duration"), "name": "q", "size": 12}, [b"\1" * 12], True),
    "millis": (logical("long", "timestamp-millis"), [0, -1, 1_700_000_000_123], True),
    "micros": (logical("long", "timestamp-micros"), [0, 2**62], True),
    "local_millis": (logical("long", "local-timestamp-millis"), [0, -1], True),
    "local_micros": (logical("long", "local-timestamp-micros"), [0, -1], True),
    "date": (logical("int", "date"), [0, 20_000, -1], True),
    "time_millis": (logical("int", "time-millis"), [0, 1], True),
    "unknown": (logical("long", "what"), [5], True),
    "int_or_long": (["int", "long"], [(0, 1), (1, 2**40)], True),
    "long_or_int": (["long", "null", "int"], [(0, 1), (2, -1), (1, None)], True),
    "float_or_double": (["float", "double"], [(0, 1.5), (1, 0.1)], True),
    "union": (["int", "string", "null"], [(0, 1), (1, "x"), (2, None)], True),
    "union_of_named": (["int", ENUM, {"type": "fixed", "name": "x", "size": 1}], [(0, 1), (1, 1)], True),
    "one_branch": (["int"], [(0, 1)], True),
    "map": ({"type": "map", "values": ["int", "null"]}, [{}, {"a": (0, 1), "b": (1, None)}], False),
    "null": ("null", [None], True),
    "empty_record": (record(), [{}], False),
    "nulls": ({"type": "array", "items": "null"}, [[], [None]], False),
    "recursive": (NODE, [{"next": (0, None)}], False),
    "optional_record": (["null", record(a="int", e=ENUM)], [(0, None), (1, {"a": 1, "e": 1})], True),
    "array": ({"type": "array", "items": ["int", "null"]}, [[], [(0, 1), (1, None)]], True),
    "arrays": ({"type": "array", "items": {"type": "array", "items": ENUM}}, [[], [[0, 1], []]], True),
    "nested": (
        record(a={**record(b="boolean", u="null"), "name": "inner"}),
        [{"a": {"b": True, "u": None}}],
        True,
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_other_writers(spark: SparkSession, tmp_path: Path, name: str) -> None:
    kind, values, native = COLUMNS[name]
    schema = {**record(before="string", c=kind, after="boolean"), "name": "top"}
    rows = [{"before": "a", "c": value, "after": True} for value in values * 3]
    path = tmp_path / "file.avro"
    path.write_bytes(avro_file(schema, [rows, rows], "deflate"))
    options = {"recursiveFieldMaxDepth": "2"} if name == "recursive" else {}
    assert_same_rows(spark, read(path, **options), native=native)
    others = native or name in ("map", "empty_record")
    assert_same_rows(spark, lambda session: read(path, **options)(session).select("after"), native=others)


@pytest.mark.parametrize(
    ("kind", "value", "asked", "native"),
    [
        ("int", 7, "bigint", True),
        ("int", 7, "double", True),
        ("float", 0.1, "double", True),
        (["null", "int"], (1, 7), "bigint", True),
        ("long", 7, "timestamp", True),
        ("long", 7, "timestamp_ntz", True),
        (logical("long", "timestamp-micros"), 7, "bigint", True),
        (logical("int", "date"), 7, "int", True),
        ("int", 7, "date", False),
        pytest.param(
            logical("int", "date"),
            7,
            "timestamp_ntz",
            False,
            marks=pytest.mark.since("4.1"),  # before, it fails
        ),
        (DECIMAL, b"\x05", "decimal(22,2)", False),
        (DECIMAL, b"\x05", "binary", False),
        (record(A="int"), {"A": 1}, "struct<missing: string, a: bigint>", True),
        ("string", "x", "string", True),
    ],
)
def test_other_types_are_asked_for(
    spark: SparkSession, tmp_path: Path, kind: Any, value: Any, asked: str, native: bool
) -> None:
    path = tmp_path / "file.avro"
    path.write_bytes(avro_file({**record(c=kind), "name": "top"}, [[{"c": value}]]))
    assert_same_rows(spark, read(path, schema=f"missing int, C {asked}"), native=native)


def test_named_types_are_referred_to(spark: SparkSession, tmp_path: Path) -> None:
    point = {"type": "record", "name": "Point", "namespace": "a.b", "fields": [{"name": "x", "type": "int"}]}
    schema = {**record(p=point, q="a.b.Point", r=["null", "a.b.Point"]), "namespace": "a.c"}
    inner = {**record(s=record(e={**ENUM, "namespace": ""}, f=["null", "e"])), "name": "outer"}
    value = {"p": {"x": 1}, "q": {"x": 2}, "r": (0, None)}
    (tmp_path / "a.avro").write_bytes(
        raw_file(schema, [(1, b"\x02\x04\x00")]),
    )
    assert encode(schema["fields"][0]["type"], value["p"]) == b"\x02"
    assert_same_rows(spark, read(tmp_path / "a.avro"))
    (tmp_path / "b.avro").write_bytes(raw_file(inner, [(1, b"\x02\x02\x00")]))
    assert_same_rows(spark, read(tmp_path / "b.avro"))


# ------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "settings", "native"),
    [
        ({"mode": "PERMISSIVE", "recordName": "x", "recursiveFieldMaxDepth": "3"}, {}, True),
        ({"ignoreExtension": "true"}, {}, True),
        ({"ignoreExtension": "false"}, {}, False),
        ({"positionalFieldMatching": "true"}, {}, False),
        ({"avroSchema": '{"type":"record","name":"r","fields":[{"name":"a","type":"long"}]}'}, {}, False),
        ({}, {"spark.sql.caseSensitive": "true"}, False),
        ({}, {"avro.mapred.ignore.inputs.without.extension": "true"}, False),
        ({}, {"spark.sql.avro.filterPushdown.enabled": "false"}, True),
    ],
)
def test_options(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], settings: dict[str, str], native: bool
) -> None:
    (tmp_path / "a.avro").write_bytes(avro_file(record(a="long"), [[{"a": 1}, {"a": 2}]]))
    (tmp_path / "b.data").write_bytes(avro_file(record(a="long"), [[{"a": 3}]]))
    with conf(spark, settings):
        frame = read(tmp_path, schema="a bigint", **options)
        assert_same_rows(spark, lambda session: frame(session).where("a > 1"), native=native)
    if not native:
        assert "FILE_OPTION_NOT_SUPPORTED" in reasons(spark)


@pytest.mark.parametrize("mode", ["CORRECTED", "LEGACY", "EXCEPTION"])
def test_old_times(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    schema = record(d=logical("int", "date"), t=logical("long", "timestamp-micros"))
    rows = [{"d": -200_000, "t": 0}]
    path, legacy, known = (tmp_path / name for name in ("file.avro", "legacy.avro", "spark.avro"))
    tags = {"org.apache.spark.version": b"3.1.0"}
    path.write_bytes(avro_file(schema, [rows]))
    known.write_bytes(avro_file(schema, [rows], metadata=tags))
    legacy.write_bytes(avro_file(schema, [rows], metadata={**tags, "org.apache.spark.legacyDateTime": b""}))
    with conf(spark, {"spark.sql.avro.datetimeRebaseModeInRead": mode}):
        assert_same_rows(spark, read(known))
        assert_same_rows(spark, read(legacy), native=False)
        assert_same_rows(spark, lambda session: read(legacy)(session).select("t"))
        if mode != "EXCEPTION":
            assert_same_rows(spark, read(path), native=mode == "CORRECTED")
        assert_same_rows(spark, read(path, datetimeRebaseMode="CORRECTED"))


# ------------------------------------------------------------------------------------------------- damaged files

INT = record(a="int")
SPLIT = b"".join(encode(INT, {"a": number}) for number in range(3))
DAMAGED: dict[str, bytes] = {
    "rows left over": raw_file(INT, [(2, SPLIT), (1, b"\x02")]),
    "a zero left over": raw_file(INT, [(1, b"\x02\x00")]),
    "rows missing": raw_file(INT, [(4, SPLIT)]),
    "rows in the next block": raw_file(INT, [(4, SPLIT), (2, SPLIT)]),
    "an empty block": raw_file(INT, [(3, SPLIT), (0, b""), (3, SPLIT)]),
    "two empty blocks": raw_file(INT, [(3, SPLIT), (0, b""), (0, b""), (3, SPLIT)]),
    "a negative block": raw_file(INT, [(3, SPLIT), (-1, SPLIT)]),
    "another marker": raw_file(INT, [(3, SPLIT)]) + raw_block(3, SPLIT, b"x" * 16),
    "bytes at the end": raw_file(INT, [(3, SPLIT)]) + b"\x00",
    "cut in a block": raw_file(INT, [(3, SPLIT), (3, SPLIT)])[:-17],
    "cut in a marker": raw_file(INT, [(3, SPLIT), (3, SPLIT)])[:-5],
    "the marker in text": avro_file(record(s="bytes"), [[{"s": MARKER}], [{"s": b"x" + MARKER}]]),
    "the marker in the header": raw_file(INT, [(3, SPLIT)], metadata={"x": MARKER}),
    "a marker in the metadata": raw_file(INT, [(3, SPLIT)], metadata={"avro.sync": MARKER}),
    "another boolean": raw_file(record(b="boolean"), [(3, b"\x00\x01\x02")]),
    "another boolean unread": raw_file(record(b="boolean", a="int"), [(1, b"\x02\x02")]),
    "no such symbol": raw_file(record(a="int", e=ENUM), [(1, b"\x02\x08")]),
    "no such branch": raw_file(record(a="int", u=["null", "int"]), [(1, b"\x02\x08\x02")]),
    "not UTF-8": raw_file(record(s="string"), [(1, encode_bytes(b"\xff\xfe"))]),
    "not UTF-8 unread": raw_file(record(a="int", s="string"), [(1, b"\x02" + encode_bytes(b"\xff"))]),
    "a large int": raw_file(INT, [(1, b"\xff\xff\xff\xff\x7f")]),
    "an empty decimal": raw_file(record(d=DECIMAL), [(1, b"\x00")]),
    "a long decimal": raw_file(record(d=DECIMAL), [(1, encode_bytes(b"\x01" * 17))]),
    "too many digits": raw_file(record(d=DECIMAL), [(1, encode_bytes(b"\x7f" * 9))]),
    "a negative length": raw_file(record(s="string"), [(1, b"\x09")]),
    "another checksum": avro_file(INT, [[{"a": 1}]], "snappy").replace(MARKER, b"\0" * 16)[:-20]
    + b"abcd"
    + b"\0" * 16,
    "no stream": raw_file(INT, [(1, b"\x02")], "deflate").replace(b"deflate", b"zstandard"[:7]),
    "two streams": raw_file(INT, []).replace(b"\x08null", b"\x0adeflate"[:1] + b"null"),
    "no header": b"Obj\x01",
    "nonsense": b"nonsense",
    "a schema of text": raw_file("int", [(1, b"\x02")]),
    "no schema": raw_file(INT, [(1, b"\x02")], metadata={"avro.schema": b"{"}),
    "too many milliseconds": raw_file(
        record(t={"type": "long", "logicalType": "timestamp-millis"}), [(1, encode("long", 2**62))]
    ),
    "many nulls": raw_file(record(u="null"), [(10, b"")]),
    "not a number": raw_file(record(x="double"), [(1, struct.pack("<Q", 0x7FF0000000000001))]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The rows, or the class of the error, are Spark's; also if it skips what is corrupt."""
    path = tmp_path / "file.avro"
    path.write_bytes(DAMAGED[name])
    wanted = (
        "s binary"
        if name == "the marker in text"
        else "a int, s string, b boolean, d decimal(20,2), x double, t timestamp"
    )
    for columns, ignores in (("*", "false"), ("count(*)", "true"), ("a", "false")):
        if columns == "a" and "unread" not in name:
            continue

        def outcome(columns: str = columns, ignores: str = ignores) -> str:
            try:
                frame = read(path, schema=wanted, ignoreCorruptFiles=ignores)(spark)
                return str(frame.selectExpr(columns).collect())
            except Exception as error:
                return type(error).__name__

        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome()
        assert outcome() == expected
