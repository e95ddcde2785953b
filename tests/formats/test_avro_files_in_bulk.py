# SPDX-License-Identifier: Apache-2.0
"""Many small Avro files, some of them damaged: what is read natively of each is what Spark reads.

One query of Spark reads all files; Volley reads each for itself, whole and in parts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.avro_files import CODECS, avro_file
from helpers.text_files import read_natively
from volley.errors import DataError
from volley.plan.types import (
    BINARY,
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
from volley.spark_versions.classic import collect_table
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.0")

AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
TYPES: dict[str, DataType] = {
    "boolean": BOOLEAN,
    "int": INTEGER,
    "bigint": LONG,
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "decimal(9,2)": DecimalType(9, 2),
    "array<bigint>": ArrayType(LONG, True),
    "array<struct<a: string, b: array<boolean>>>": ArrayType(
        StructType(
            (StructField("a", STRING, True), StructField("b", ArrayType(BOOLEAN, True), True)),
        ),
        True,
    ),
    "struct<a: int, b: string>": StructType(
        (StructField("a", INTEGER, True), StructField("b", STRING, True))
    ),
}


class RandomAvro:
    """Random schemas for Spark's types, values of them, and files."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names = 0

    def file(self, columns: dict[str, str]) -> bytes:
        chance = self._chance
        fields = [(name, self._schema(kind)) for name, kind in columns.items() if chance.random() < 0.95]
        fields += [(f"other{place}", self._other()) for place in range(chance.randint(0, 2))]
        chance.shuffle(fields)
        schema = self._record(dict(fields or [("other", "long")]))
        blocks = [
            [self._value(schema) for _ in range(chance.randint(1, 4))] for _ in range(chance.randint(0, 4))
        ]
        data = avro_file(schema, blocks, chance.choice(["null", "null", *CODECS]))
        return self._damage(data, len(avro_file(schema, []))) if chance.random() < 0.5 else data

    def _damage(self, data: bytes, first: int) -> bytes:
        """The file with a few bytes changed, cut or repeated after its header."""
        chance = self._chance
        if len(data) <= first:
            return data
        place = chance.randrange(first, len(data))
        match chance.randint(0, 3):
            case 0:
                return data[:place]
            case 1:
                return data[:place] + data[place : place + chance.randint(1, 30)] + data[place:]
            case 2:
                return data[:place] + data[place + chance.randint(1, 3) :]
            case _:
                return data[:place] + bytes([chance.randrange(128)]) + data[place + 1 :]

    def _schema(self, kind: str) -> Any:
        forms: dict[str, list[Callable[[], Any]]] = {
            "boolean": [lambda: "boolean"],
            "int": [lambda: "int", lambda: {"type": "int", "logicalType": "date"}],
            "bigint": [
                lambda: "long",
                lambda: "int",
                lambda: ["int", "long"],
                lambda: ["long", "null", "int"],
            ],
            "double": [lambda: "double", lambda: "float", lambda: "int", lambda: ["double", "float"]],
            "string": [lambda: "string", self._enum],
            "binary": [lambda: "bytes", self._fixed],
            "date": [lambda: {"type": "int", "logicalType": "date"}],
            "timestamp": [
                lambda: {"type": "long", "logicalType": "timestamp-micros"},
                lambda: {"type": "long", "logicalType": "timestamp-millis"},
                lambda: "long",
            ],
            "decimal(9,2)": [
                lambda: {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                lambda: {**self._fixed(5), "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
            "array<bigint>": [lambda: {"type": "array", "items": self._schema("bigint")}],
            "array<struct<a: string, b: array<boolean>>>": [
                lambda: {
                    "type": "array",
                    "items": self._optional(self._record({"a": self._schema("string"), "b": flags})),
                }
            ],
            "struct<a: int, b: string>": [
                lambda: self._record(
                    {"B": self._schema("string"), "x": self._other(), "a": self._schema("int")}
                )
            ],
        }
        flags = {"type": "array", "items": "boolean"}
        return self._optional(self._chance.choice(forms[kind])())

    def _optional(self, schema: Any) -> Any:
        if isinstance(schema, list) or self._chance.random() < 0.5:
            return schema
        return self._chance.choice([["null", schema], [schema, "null"]])

    def _other(self) -> Any:
        forms: list[Callable[[], Any]] = [
            lambda: "string",
            lambda: "null",
            lambda: ["null", "int", "string"],
            lambda: {"type": "map", "values": self._schema("array<bigint>")},
            lambda: self._schema(self._chance.choice(list(TYPES))),
            self._enum,
        ]
        return self._chance.choice(forms)()

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _record(self, fields: dict[str, Any]) -> Any:
        listed = [{"name": name, "type": kind} for name, kind in fields.items()]
        return {"type": "record", "name": self._name(), "fields": listed}

    def _enum(self) -> Any:
        return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}

    def _fixed(self, size: int = 2) -> dict[str, Any]:
        return {"type": "fixed", "name": self._name(), "size": size}

    def _value(self, schema: Any) -> Any:
        chance = self._chance
        if isinstance(schema, list):
            branch = chance.randrange(len(schema))
            return branch, self._value(schema[branch])
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "record":
                return {field["name"]: self._value(field["type"]) for field in schema["fields"]}
            case "array":
                return [self._value(schema["items"]) for _ in range(chance.choice([0, 1, 2, 5]))]
            case "map":
                return {str(key): self._value(schema["values"]) for key in range(chance.randint(0, 2))}
            case "fixed":
                number = chance.randint(-(10**6), 10**6)
                return number.to_bytes(max(3, schema["size"]), "big", signed=True)[-schema["size"] :]
            case "bytes" if isinstance(schema, dict):
                size = chance.choice([4, 4, 8, 17])
                return chance.randint(-(10**6), 10**6).to_bytes(size, "big", signed=True)
            case "int":
                return chance.choice([0, 1, -1, 2**31 - 1, -(2**31), 20_000])
            case "long":
                return chance.choice([0, 1, -1, 2**40, 1_700_000_000_123, -(2**50)])
            case _:
                return chance.choice(_VALUES[kind])


_VALUES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [0, 1],
    "enum": [0, 1, 2],
    "float": [0.0, -0.0, 1.5, float("inf")],
    "double": [0.0, -0.0, 0.1, float("-inf")],
    "bytes": [b"", b"a", b"\xff\xfe"],
    "string": ["", "a", "é", "😀", "x" * 70],
}


@pytest.mark.parametrize(
    "counts", [[300], pytest.param([1000] * 6, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_files(spark: SparkSession, tmp_path: Path, counts: list[int]) -> None:
    chance = random.Random(7 * len(counts))
    read = 0
    for number, count in enumerate(counts):
        kinds = {f"c{place}": chance.choice(list(TYPES)) for place in range(chance.randint(2, 5))}
        directory = tmp_path / str(number)
        directory.mkdir()
        for name in range(count):
            (directory / f"{name}.avro").write_bytes(RandomAvro(chance).file(kinds))
        columns = {name: TYPES[kind] for name, kind in kinds.items()}
        for wanted in (list(kinds), [chance.choice(list(kinds))], []):
            expected = spark_rows(spark, directory, kinds, wanted)
            read += compare(directory, columns, wanted, expected, chance)
    assert read > sum(counts), "few files were read natively"


def spark_rows(
    spark: SparkSession, directory: Path, kinds: dict[str, str], wanted: list[str]
) -> dict[str, list[str]]:
    """Spark's rows of each file, up to where it is corrupt."""
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    settings = {
        "spark.volley.enabled": "false",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.avro.datetimeRebaseModeInRead": "CORRECTED",
    }
    with conf(spark, settings):
        frame = spark.read.format(AVRO).schema(schema).load(str(directory))
        table = collect_table(frame.selectExpr(*wanted, "input_file_name()"))
    found = defaultdict(list)
    urls = table.column(len(wanted)).to_pylist()
    for url, row in zip(urls, _rows(table.select(range(len(wanted))), len(urls)), strict=True):
        found[url.rpartition("/")[2]].append(row)
    return found


def compare(
    directory: Path,
    columns: dict[str, DataType],
    wanted: list[str],
    expected: dict[str, list[str]],
    chance: random.Random,
) -> int:
    """Compare every file that is read natively, and return their number."""
    read = 0
    for path in sorted(directory.iterdir()):
        if path.suffix != ".avro":
            continue
        parts = chance.choice([1, 1, 2, 3, path.stat().st_size])
        try:
            batches = [
                batch
                for part in range(min(parts, 50))
                for batch in read_natively(
                    path, "avro", columns, {}, part=part, parts=min(parts, 50), wanted=wanted
                )
            ]
        except DataError:
            continue
        read += 1
        rows = [row for batch in batches for row in _rows(batch, batch.num_rows)]
        assert rows == expected[path.name], (path, wanted, parts)
    return read


def _rows(table: pa.Table | pa.RecordBatch, count: int) -> list[str]:
    """Rows as text. Python has not all dates and times, so they are numbers."""
    columns = [
        column.cast(pa.int32())
        if pa.types.is_date(column.type)
        else column.cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in table.columns
    ]
    return [str([_value(column[row]) for column in columns]) for row in range(count)]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        # Spark passes on what is no text; natively it is never read.
        return "no text"
