# SPDX-License-Identifier: Apache-2.0
"""Random CSV lines and values: each that is read natively is read as Spark reads it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.text_files import accepted_lines
from volley.errors import DataError
from volley.formats.text_values import convert_text
from volley.plan.types import (
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)
from volley.testing.rows import assert_same_rows

PIECES = [
    *(
        ",",
        ",",
        ",",
        '"',
        '"',
        '""',
        "'",
        "\\",
        '\\"',
        " ",
        "\t",
        "a",
        "b",
        "1",
        "é",
        "😀",
        "\x01",
        "\x85",
        "\u2028",
    ),
    *("|", "#", "-", "NULL", '","', '",', ',"', "\xa0", "\ufeff", "\x1f", ";"),
]
DIALECTS: list[dict[str, str]] = [
    {},
    {"escape": '"'},
    {"nullValue": "NULL", "emptyValue": "b"},
    {"quote": ""},
    {"sep": "\t", "comment": "#"},
    {"quote": "'", "sep": "|", "nullValue": "a"},
    {"escape": "", "emptyValue": "a"},
]
LAST = {",": b',"",', "|": b"|''|", "\t": b'x\t""\t'}
THREE = dict.fromkeys("abc", STRING)


def random_lines(chance: random.Random, count: int) -> list[bytes]:
    lines = []
    for _ in range(count):
        fields = []
        for _ in range(3):
            text = "".join(chance.choices(PIECES, k=chance.randint(0, 3)))
            fields.append(f'"{text}"' if chance.random() < 0.3 else text)
        separator = chance.choice([",", ",", "|", "\t"])
        line = separator.join(fields)
        # A mark at the start of a file is no text, and blank lines have no rows.
        if line.strip() and not line.startswith("\ufeff"):
            lines.append(line.encode())
    return lines


@pytest.mark.parametrize("options", DIALECTS, ids=str)
def test_lines_with_a_native_form(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    check_lines(spark, tmp_path, options, random_lines(random.Random(1), 300), least=5)


@pytest.mark.slow
@pytest.mark.parametrize("options", DIALECTS, ids=str)
def test_more_lines_with_a_native_form(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    check_lines(spark, tmp_path, options, random_lines(random.Random(2), 15_000), least=500)


def check_lines(
    spark: SparkSession, directory: Path, options: dict[str, str], lines: list[bytes], least: int
) -> None:
    # Lines of another width than the first one have no native form in the same file.
    strict = options | {"mode": "FAILFAST"}
    found = list(accepted_lines(lines, directory, "csv", THREE, strict))
    assert len(found) > least
    path = directory / "lines.csv"
    # Arrow reads the end of the last line in its own way.
    last = LAST[options.get("sep", ",")] if options.get("escape") != "" else b"x,,"
    path.write_bytes(b"\n".join([*found, last]))
    assert_same_rows(
        spark,
        lambda session: session.read.options(**options).schema("a string, b string, c string").csv(str(path)),
    )


NUMBERS = [
    "",
    "0",
    "1",
    "-1",
    "+1",
    "00",
    "-0",
    "127",
    "128",
    "-129",
    "32768",
    "2147483648",
    "9223372036854775808",
]
NUMBERS += [
    "1.5",
    ".5",
    "5.",
    ".",
    "-",
    "-.5",
    "1e3",
    "1E-3",
    "1e",
    "0x1F",
    "1d",
    "1f",
    " 1",
    "1 ",
    "1,5",
    "1_0",
    "NaN",
]
NUMBERS += [
    "Inf",
    "-Inf",
    "Infinity",
    "nan",
    "1e400",
    "1e-400",
    "0.1",
    "16777217",
    "9007199254740993",
    "1.005",
    "99.995",
]
NUMBERS += [
    "12345678901234567890123456789012345678",
    "0.123456789012345678",
    "١",
    "true",
    "TRUE",
    "False",
    "t",
    "yes",
    "1.0",
]
DATES = [
    "2024-02-29",
    "2023-02-29",
    "2024-2-9",
    "0001-01-01",
    "0000-01-01",
    "9999-12-31",
    "10000-01-01",
    "-001-01-01",
]
DATES += [
    "1582-10-10",
    "1500-02-29",
    "2024-01-01T",
    "2024-01-01 00:00:00",
    "20240101",
    "2024",
    "2024-01",
    "epoch",
    "now",
]
TIMES = [
    f"{day}{mark}{time}"
    for day in DATES[:3] + DATES[5:10]
    for mark in " T"
    for time in (
        "00:00:00",
        "23:59:59",
        "24:00:00",
        "12:30",
        "12",
        "1:2:3",
        "00:00:60",
        "12:00:00.1",
        "12:00:00.123456",
        "12:00:00.1234567",
        "12:00:00Z",
        "12:00:00.000Z",
        "12:00:00.123456+05:30",
        "12:00:00-17:59",
        "12:00:00+18:00",
        "12:00:00+0530",
        "12:00+01:00",
        "12:00:00 Z",
        "12:00:00Z",
        "12:00:00+01:00",
        "12:00:00 UTC",
        "12:00:00.",
    )
]
TYPES: dict[str, DataType] = {
    "boolean": BOOLEAN,
    "tinyint": BYTE,
    "smallint": SHORT,
    "int": INTEGER,
    "bigint": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "decimal(5,2)": DecimalType(5, 2),
    "decimal(38,18)": DecimalType(38, 18),
    "decimal(20,0)": DecimalType(20, 0),
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}


def random_values(chance: random.Random, count: int) -> list[str]:
    numbers = ["".join(chance.choices("0123456789.-+eE", k=chance.randint(1, 12))) for _ in range(count)]
    floats = [repr(chance.uniform(-1, 1) * 10.0 ** chance.randint(-40, 40)) for _ in range(count)]
    times = [
        f"{chance.randint(0, 9999):04}-{chance.randint(1, 13):02}-{chance.randint(1, 31):02}"
        f"{chance.choice([' ', 'T', ''])}{chance.randint(0, 24):02}:{chance.randint(0, 59):02}"
        f":{chance.randint(0, 60):02}"
        f"{chance.choice(['', '.5', '.000001', '.999999'])}"
        for _ in range(count)
    ]
    return [*numbers, *floats, *times, *(time[:10] for time in times)]


def test_values_with_a_native_form(spark: SparkSession, tmp_path: Path) -> None:
    texts = [*NUMBERS, *DATES, *TIMES, *random_values(random.Random(3), 150)]
    columns = {
        name: [text for text in texts if text and is_plain(text, kind)] for name, kind in TYPES.items()
    }
    assert all(len(found) >= 2 for found in columns.values())
    rows = max(map(len, columns.values()))
    filled = [found + [found[0]] * (rows - len(found)) for found in columns.values()]
    path = tmp_path / "values.csv"
    path.write_text("\n".join(map("|".join, zip(*filled, strict=True))))
    schema = ", ".join(f"c{number} {name}" for number, name in enumerate(columns))
    reader = spark.read.options(sep="|", mode="FAILFAST").schema(schema)
    assert assert_same_rows(spark, reader.csv(str(path))).num_rows == rows


def is_plain(text: str, kind: DataType) -> bool:
    try:
        convert_text(pa.array([text]), kind)
    except DataError:
        return False
    return True
