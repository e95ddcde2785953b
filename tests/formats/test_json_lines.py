# SPDX-License-Identifier: Apache-2.0
"""JSON lines give Spark's rows: natively where every line is one plain object, otherwise on Spark."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import volley
from helpers.text_files import accepted_lines
from volley.formats.json import has_doubtful_values, has_long_numbers
from volley.formats.plain_json import PlainLines
from volley.plan.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    ArrayType,
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from volley.testing.rows import assert_same_rows

COLUMNS: dict[str, DataType] = {
    "a": LONG,
    "s": STRING,
    "x": DOUBLE,
    "b": BOOLEAN,
    "d": DATE,
    "t": TIMESTAMP,
    "m": DecimalType(7, 2),
    "r": StructType((StructField("i", INTEGER, True), StructField("s", STRING, True))),
    "l": ArrayType(LONG, True),
}
SCHEMA = (
    "a bigint, s string, x double, b boolean, d date, t timestamp, m decimal(7,2),"
    " r struct<i: int, s: string>, l array<bigint>"
)
PLAIN = b"""{"a": 1, "s": "x\\u00e9\\n", "x": 1.5e3, "b": true, "d": "2024-02-29", "t": "2024-02-29 12:00:00.5"}

{"m": 12.5, "r": {"i": 1, "s": null, "more": [1]}, "l": [1, null, -3], "more": {"a": [{}]}}
{}
{"a": null, "s": "", "r": null, "l": []}
"""
ON_SPARK = {
    "text for a number": b'{"a": "1"}\n',
    "number for text": b'{"s": 1.0}\n',
    "object for text": b'{"s": {"k": 1}}\n',
    "fraction for an integer": b'{"a": 1.0}\n',
    "too large": b'{"a": 99999999999999999999}\n',
    "cut off": b'{"a": 1, "s": "x\n{"a": 2}\n',
    "two objects": b'{"a": 1}{"a": 2}\n',
    "null after an object": b'{"a": 1} null {"a": 2}\n',
    "null": b'null\n{"a": 1}\n',
    "array": b'[{"a": 1}, {"a": 2}]\n',
    "repeated": b'{"a": 1, "a": 2}\n',
    "single quotes": b"{'a': 1}\n",
    "not a number": b'{"x": NaN}\n{"x": "Infinity"}\n',
    "digits": b'{"m": 1.005}\n',
    # Times 100, this is 44 modulo 2^128.
    "overflow": b'{"m": 3402823669209384634633746074317682115}\n',
    "exponent": b'{"m": 1e38}\n',
    "precision": b'{"m": 100000}\n',
    "negative zero": b'{"x": -0}\n',
    "date": b'{"d": "2024-1-1"}\n{"d": 1}\n',
    "time": b'{"t": "2024-01-01T00:00:00Z"}\n',
    "invalid UTF-8": b'{"s": "\xff"}\n',
    "white space": b'  \n{"a": 1}\n',
    "leading zeros": b'{"a": 01}\n',
    "several lines": b'{"a":\n1}\n',
    "deep": b'{"k": ' + b"[" * 2000 + b"]" * 2000 + b', "a": 1}\n',
}


def outcome(frame: Any) -> Any:
    try:
        return sorted(map(str, frame.collect()))
    except Exception as error:
        return type(error).__name__


def test_what_is_looked_for_is_what_the_expressions_say() -> None:
    choose = random.Random(1)
    parts = [
        "{",
        "}",
        "}\n",
        "} ",
        "}\t",
        "}\r\n",
        '"',
        ":",
        ",",
        "[",
        "]",
        " ",
        "-",
        "+",
        ".",
        "e",
        "E",
        "NaN",
    ]
    parts += ["Inf", "x", "0", "7", "12", "1" * 17, "9" * 20, "null"]
    outcomes = set()
    for _ in range(10_000):
        block = "".join(choose.choices(parts, k=choose.randint(1, 8))).encode()
        digits = choose.randint(0, 19)
        long = rb"(?<![.0-9])[0-9]{%d}|\.[0-9]{19}|[:\[,]\s*-?[0-9.]+[eE]\+?[0-9]{2}"
        is_long = re.search(long % (digits + 1), block)
        is_doubtful = re.search(rb"[:\[,]\s*-?(?:NaN|Inf)|\}[ \t\r]*[^ \t\r\n,\]}\"]", block)
        assert has_long_numbers(block, digits) == bool(is_long), block
        assert has_doubtful_values(block, np.frombuffer(block, np.uint8)) == bool(is_doubtful), block
        outcomes.add((bool(is_long), bool(is_doubtful)))
    assert len(outcomes) == 4


def lines_of(block: bytes) -> np.ndarray:
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    return np.append(0, ends[ends < len(block)])


def numbers_of(line: bytes) -> list[str]:
    """The numbers of a line of standard JSON, as they are written."""
    found: list[str] = []
    assert not line or isinstance(
        json.loads(line, parse_int=found.append, parse_float=found.append, parse_constant=int), dict
    )
    return found


def test_nothing_is_doubtful_in_plain_lines() -> None:
    """They are not looked at again: standard JSON, with numbers that all parsers take for the same."""
    chance = random.Random(1)
    odd = [line for data in ON_SPARK.values() for line in data.splitlines() if len(line) < 1_000]
    pieces = [
        b"",
        b" ",
        b"\t",
        b",",
        b"]",
        b"}",
        b"{",
        b'"',
        b"\\",
        b"-",
        b"0",
        b".",
        b"1e2",
        b"NaN",
        b"\x01",
    ]
    found = {True: 0, False: 0}
    for line in [*odd, *random_lines(chance, 600)]:
        cut = chance.randint(0, len(line))
        changed = line[:cut] + chance.choice(pieces) + line[cut + chance.randint(0, 1) :]
        for text in (line, changed):
            if b"\xff" in text or not PlainLines(None, 18).are_plain(text, lines_of(text)):
                continue
            found[text is line] += 1
            numbers = numbers_of(text)
            assert "-0" not in numbers
            for digits in (0, 3, 19):
                if PlainLines(digits, 18).are_plain(text, lines_of(text)):
                    assert all(
                        re.fullmatch(rf"-?[0-9]{{1,{digits}}}(\.[0-9]{{1,18}})?", one) for one in numbers
                    )
    assert min(found.values()) > 50


def test_which_lines_are_plain() -> None:
    good = b'{"a": 1, "s": "x\\n\xc3\xa9", "x": -0.5, "l": [1, null], "r": {"i": "}"}}\r\n\n{}\n'
    assert PlainLines(19, 18).are_plain(good, lines_of(good))
    assert PlainLines(19, 18).are_plain(good[:-1], lines_of(good[:-1]))
    late = b"{}\n" * 100 + b'{"a": 01}\n'
    lines = PlainLines(19, 18)
    assert not lines.are_plain(late, lines_of(late))
    assert not lines.are_plain(good, lines_of(good))


def test_plain_lines_are_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for data in (PLAIN, PLAIN.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + PLAIN.rstrip(), b""):
        path.write_bytes(data)
        for mode in ("PERMISSIVE", "FAILFAST"):
            reader = spark.read.schema(f"{SCHEMA}, _corrupt_record string").option("mode", mode)
            assert_same_rows(spark, reader.json(str(path)))
    path.write_bytes(PLAIN)
    spark.read.schema(SCHEMA).json(str(path)).createOrReplaceTempView("j")
    assert_same_rows(spark, "SELECT count(*) FROM j")
    assert_same_rows(spark, "SELECT r.i, sum(a), max(s) FROM j WHERE s IS NOT NULL GROUP BY r.i")


def test_lines_in_other_encodings(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    reader = spark.read.schema("`é` string, a bigint, _corrupt_record string")
    # Spark asks for the line end if the encoding is not UTF-8.
    reader = reader.option("lineSep", "\n")
    latin = '{"é": "ü\x85\xa0", "a": 1}\n\n{"é": "\\u20ac", "É": 1}'.encode("latin-1")
    for encoding, data in (
        ("ISO-8859-1", latin),
        ("iso-8859-1", b"\xef\xbb\xbf" + latin),
        ("US-ASCII", PLAIN),
        ("utf-8", b"\xef\xbb\xbf" + latin.decode("latin-1").encode()),
    ):
        path.write_bytes(data)
        assert_same_rows(spark, reader.option("encoding", encoding).json(str(path)))
    for encoding, data in (
        ("US-ASCII", latin),
        ("UTF-8", latin),
        ("ISO-8859-1", b"{}\n\xef\xbb\xbf" + latin),
        ("ISO-8859-1", "\ufeff{}".encode("utf-16-le")),
        ("ISO-8859-1", latin.replace(b"\n", b"\r")),
        ("ISO-8859-1", latin.replace(b"1", b"x")),
    ):
        path.write_bytes(data)
        for mode in ("PERMISSIVE", "DROPMALFORMED"):
            frame = reader.option("encoding", encoding).option("mode", mode).json(str(path))
            assert_same_rows(spark, frame, native=False)


def test_decimals_with_all_digits_of_their_scale(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark writes them."""
    path = tmp_path / "file.json"
    numbers = [
        "1.500000000000000000",
        "-99999999999.999999999999999999",
        "0.000000000000000001",
        "7",
        "2.5e3",
    ]
    path.write_text("".join(f'{{"m": {number}}}\n' for number in numbers))
    assert_same_rows(spark, spark.read.schema("m decimal(38,18)").json(str(path)))


QUICK = {
    "overflow",
    "precision",
    "negative zero",
    "text for a number",
    "number for text",
    "two objects",
    "null after an object",
    "null",
    "array",
}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_other_lines_are_read_by_spark(spark: SparkSession, tmp_path: Path, slow: bool) -> None:
    path = tmp_path / "file.json"
    for name, data in ON_SPARK.items():
        if (name in QUICK) == slow:
            continue
        path.write_bytes(data)
        for mode in ("PERMISSIVE", "FAILFAST") if slow else ("PERMISSIVE",):
            frame = spark.read.schema(SCHEMA).option("mode", mode).json(str(path))
            spark.conf.set("spark.volley.enabled", "false")
            expected = outcome(frame)
            spark.conf.set("spark.volley.enabled", "true")
            assert outcome(frame) == expected, name
            report = volley.last_query(spark)
            assert report is not None
            assert report.engine == "spark", name


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    0.1,
    -0.0,
    1e300,
    1e-7,
    12.345,
    "",
    "x",
    "é😀\u2028",
]
VALUES += [
    "2024-02-29",
    "2023-02-29",
    "2024-02-29 01:02:03",
    "2024-02-29T01:02:03.123456",
    "1.5",
    "NaN",
    "\\",
    '"',
    "}",
    "{",
]
VALUES += [
    [],
    [1],
    [1, None],
    ["x"],
    {},
    {"i": 1},
    {"i": None, "s": "y"},
    {"i": "1"},
    {"x": 1},
    [[1]],
    {"s": "} null {"},
]
NUMBERS = ["-0", "1e3", "1E+3", "1.50", "0.10", "1e-2", "100e-2", "12345678901234567890", "0.1e1", "1.0"]


def random_lines(chance: random.Random, count: int) -> list[bytes]:
    names = [*COLUMNS, "k", "A"]
    lines = []
    for _ in range(count):
        parts = []
        for name in chance.sample(names, chance.randint(0, 4)):
            value = (
                chance.choice(NUMBERS)
                if chance.random() < 0.3
                else json.dumps(chance.choice(VALUES), ensure_ascii=chance.random() < 0.5)
            )
            parts.append(f'"{name}"{chance.choice(["", " "])}:{chance.choice(["", " "])}{value}')
        lines.append(("{" + chance.choice([",", ", "]).join(parts) + "}").encode())
    return lines


@pytest.mark.parametrize("count", [400, pytest.param(15_000, marks=pytest.mark.slow)])
def test_random_lines_with_a_native_form(spark: SparkSession, tmp_path: Path, count: int) -> None:
    found = list(accepted_lines(random_lines(random.Random(count), count), tmp_path, "json", COLUMNS, {}))
    assert len(found) > count // 6
    path = tmp_path / "lines.json"
    # Other lines are looked at in another way, block by block.
    parts: list[list[bytes]] = [[], []]
    for line in found:
        parts[PlainLines(19, 18).are_plain(line, lines_of(line))].append(line)
    for part in parts:
        assert part
        path.write_bytes(b"\n".join(part))
        assert assert_same_rows(spark, spark.read.schema(SCHEMA).json(str(path))).num_rows == len(part)
