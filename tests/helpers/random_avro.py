# SPDX-License-Identifier: Apache-2.0
"""Random Avro files that can be read as some of Spark's types, in all the ways of their writers, and damaged ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from helpers.avro_files import CODECS, avro_file
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
