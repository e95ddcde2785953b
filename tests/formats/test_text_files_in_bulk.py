# SPDX-License-Identifier: Apache-2.0
"""Many small CSV and JSON files: what is read natively of each is what Spark reads.

One query of Spark reads all files; Volley reads each for itself, whole and in parts. That compares thousands of files
in the time of a few queries.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.random_text import NESTED, TYPES, RandomText, Schema
from helpers.text_files import read_natively
from volley.errors import DataError
from volley.plan.read_rules import READ_RULES
from volley.plan.types import DataType
from volley.testing.session import conf

CSV_OPTIONS: list[dict[str, str]] = [
    {},
    {"header": "true"},
    {"sep": "|", "nullValue": "1"},
    {"escape": '"', "mode": "DROPMALFORMED"},
    {"nullValue": "NULL", "emptyValue": "a"},
    {"quote": "'", "comment": "#"},
    {"sep": "\t", "header": "true", "comment": "a"},
    {"quote": "", "lineSep": "\n"},
    {"escape": "", "emptyValue": "1"},
    {"sep": " ", "columnPruning": "false"},
    {"timestampFormat": "yyyy-MM-dd HH:mm:ss", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss"},
    {"sep": "-", "unescapedQuoteHandling": "BACK_TO_DELIMITER"},
]
JSON_OPTIONS: list[dict[str, str]] = [
    {},
    {"mode": "DROPMALFORMED", "lineSep": "\n"},
    {"allowSingleQuotes": "false", "allowComments": "true"},
    {"allowNumericLeadingZeros": "true", "allowNonNumericNumbers": "false"},
    {"allowUnquotedFieldNames": "true", "allowBackslashEscapingAnyCharacter": "true"},
    {"allowUnquotedControlChars": "true", "timestampFormat": "yyyy-MM-dd HH:mm:ss"},
    {"primitivesAsString": "true", "prefersDecimal": "true", "encoding": "UTF-8"},
]
FEW = [("csv", CSV_OPTIONS[0], 250), ("csv", CSV_OPTIONS[1], 250), ("json", JSON_OPTIONS[0], 250)]
MANY = [
    *(("csv", options, 1500) for options in CSV_OPTIONS),
    *(("json", options, 1500) for options in JSON_OPTIONS),
]


@pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def test_files(spark: SparkSession, tmp_path: Path, cases: list[tuple[str, dict[str, str], int]]) -> None:
    chance = random.Random(len(cases))
    for number, (file_format, options, count) in enumerate(cases):
        known = {**TYPES, **NESTED}
        kinds = [kind for kind in known if READ_RULES[file_format].reads(known[kind])]
        schema = [(f"c{place}", chance.choice(kinds)) for place in range(chance.randint(1, 4))]
        directory = tmp_path / str(number)
        directory.mkdir()
        text = RandomText(chance, schema, options)
        for name in range(count):
            (directory / str(name)).write_bytes(text.csv() if file_format == "csv" else text.json())
        columns = {name: known[kind] for name, kind in schema}
        for wanted in (list(columns), [chance.choice(schema)[0]], []):
            expected = spark_rows(spark, directory, file_format, schema, options, wanted)
            compare(directory, file_format, columns, options, wanted, expected, chance)


def spark_rows(
    spark: SparkSession,
    directory: Path,
    file_format: str,
    schema: Schema,
    options: dict[str, str],
    wanted: list[str],
) -> dict[str, list[tuple[str, ...]]]:
    """Spark's rows of each file. Without columns only their number counts, which is another way through its parser."""
    declared = ", ".join(f"{name} {kind}" for name, kind in schema)
    frame = spark.read.schema(declared).options(**options).format(file_format).load(str(directory))
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    with conf(spark, {"spark.volley.enabled": "false", "spark.sql.files.openCostInBytes": "0"}):
        if not wanted:
            for name, rows in frame.groupBy("_metadata.file_name").count().collect():
                found[name] = [()] * rows
            return found
        table = frame.select(*wanted, "_metadata.file_name").toArrow()
    *columns, names = (column.combine_chunks() for column in table.columns)
    for name, *row in zip(names.to_pylist(), *map(texts, columns), strict=True):
        found[name].append(tuple(row))
    return found


def compare(
    directory: Path,
    file_format: str,
    columns: dict[str, DataType],
    options: dict[str, str],
    wanted: list[str],
    expected: dict[str, list[tuple[str, ...]]],
    chance: random.Random,
) -> None:
    outcomes: Counter[str] = Counter()
    for path in sorted(directory.iterdir()):
        where = (file_format, columns, options, wanted, path.read_bytes())
        try:
            rows = native_rows(path, file_format, columns, options, wanted, 1)
        except DataError:
            outcomes["left to Spark"] += 1
            continue
        outcomes["native"] += 1
        assert rows == expected.get(path.name, []), where
        try:
            in_parts = native_rows(path, file_format, columns, options, wanted, chance.randint(2, 4))
        except DataError:
            continue
        assert in_parts == rows, where
    # A generator of nothing but odd files would prove little.
    assert outcomes["native"] > outcomes["left to Spark"] / 4, (where, outcomes)


def native_rows(
    path: Path,
    file_format: str,
    columns: dict[str, DataType],
    options: dict[str, str],
    wanted: list[str],
    parts: int,
) -> list[tuple[str, ...]]:
    carried = {key: value for key, value in options.items() if key.lower() in READ_RULES[file_format].carried}
    rows: list[tuple[str, ...]] = []
    for part in range(parts):
        for batch in read_natively(
            path, file_format, columns, carried, part=part, parts=parts, wanted=wanted
        ):
            rows += zip(*map(texts, batch.columns), strict=True) if wanted else [()] * batch.num_rows
    return rows


def texts(values: pa.Array) -> list[str]:
    """Values as texts, which tell -0.0 from 0.0, and one NaN from no other."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        # Beyond the years of Python.
        values = values.cast(pa.int32())
    elif pa.types.is_string(values.type):
        # Spark's may have bytes that are no text.
        values = values.view(pa.binary())
    found: list[Any] = values.to_pylist()
    return [repr(value) for value in found]
