# SPDX-License-Identifier: Apache-2.0
"""The types of Avro files: what their schemas say, and the simpler schemas with which their bytes are decoded.

Avro's bytes do not say what they are, so that another schema for the same bytes may be given to the decoder. The one
made here has what the values are checked by, which the decoder does not do (`avro_values`), and nothing that it cannot
decode:

    boolean          a byte
    enum             the number of its symbol
    text             bytes, if no one reads it
    decimal, times   bytes and numbers
    map              an array of entries
    null             nothing at all
    names            numbers, each of its own
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from volley.errors import DataError

Schema = str | dict[str, Any] | list[Any]
"""As JSON."""

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_MOST_TYPES = 10_000


@dataclass(frozen=True)
class AvroType:
    """A type of an Avro schema. `parts` are the types of fields, items, values or branches, `names` those of fields."""

    kind: str
    parts: tuple[AvroType, ...] = ()
    names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    logical: str | None = None
    precision: int = 0
    scale: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether its values have no bytes."""
        if self.kind == "record":
            return all(part.is_empty for part in self.parts)
        return self.kind == "null" or (self.kind == "fixed" and not self.size)

    @property
    def has_numbers(self) -> bool:
        """Whether the values have numbers of symbols or branches, which may not exist."""
        return self.kind in ("enum", "union") or any(part.has_numbers for part in self.parts)

    @property
    def branches(self) -> tuple[AvroType, ...]:
        """Those of a union that are not null."""
        return tuple(part for part in self.parts if part.kind != "null")


def parse_schema(text: str) -> AvroType:
    """The type that a schema names. DataError for one that is not certainly valid, or is recursive."""
    try:
        return _Parser().parse(json.loads(text), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"an Avro schema cannot be read: {error}") from error


class _Parser:
    """Parses one schema. Types that have names may be referred to by them; they are put in place of each reference."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        self._types = 0

    def parse(self, schema: Schema, namespace: str) -> AvroType:
        self._types += 1
        if self._types > _MOST_TYPES:
            raise DataError("an Avro schema has very many types.")
        if isinstance(schema, str):
            return AvroType(schema) if schema in _PRIMITIVES else self._find(schema, namespace)
        if isinstance(schema, list):
            return AvroType("union", self._branches(schema, namespace))
        kind = schema["type"]
        logical = _Logical.of(schema)
        if kind in _PRIMITIVES:
            return AvroType(kind, **logical)
        if kind == "array":
            return AvroType(kind, (self.parse(schema["items"], namespace),))
        if kind == "map":
            return AvroType(kind, (self.parse(schema["values"], namespace),))
        if kind not in ("record", "enum", "fixed"):
            raise DataError(f"an Avro schema has a type {kind}.")
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        if name in self._named or name in _PRIMITIVES:
            raise DataError(f"an Avro schema has several types named {name}.")
        self._named[name] = None
        if kind == "record":
            found = self._record(schema["fields"], name.rpartition(".")[0])
        elif kind == "enum":
            found = AvroType(kind, symbols=_distinct(schema["symbols"]))
        else:
            found = AvroType(kind, size=_natural(schema["size"]), **logical)
        self._named[name] = found
        return found

    def _find(self, name: str, namespace: str) -> AvroType:
        full_name = _full_name(name, namespace)
        found = self._named[full_name if full_name in self._named else name]
        if found is None:
            raise DataError(f"the Avro type {name} contains itself.")
        self._types += _count(found)
        return found

    def _record(self, fields: Sequence[dict[str, Any]], namespace: str) -> AvroType:
        names = _distinct(field["name"] for field in fields)
        return AvroType("record", tuple(self.parse(field["type"], namespace) for field in fields), names)

    def _branches(self, schemas: Sequence[Schema], namespace: str) -> tuple[AvroType, ...]:
        branches = tuple(self.parse(schema, namespace) for schema in schemas)
        unnamed = [part.kind for part in branches if part.kind not in ("record", "enum", "fixed")]
        if "union" in unnamed or len(set(unnamed)) < len(unnamed):
            raise DataError("an Avro schema has a union that is not valid.")
        return branches


class _Logical:
    @staticmethod
    def of(schema: dict[str, Any]) -> dict[str, Any]:
        """What a schema says about the meaning of a type."""
        logical = schema.get("logicalType")
        if logical != "decimal":
            return {"logical": logical}
        scale = _natural(schema.get("scale", 0))
        return {"logical": logical, "precision": _natural(schema["precision"]), "scale": scale}


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _distinct(names: Iterable[Any]) -> tuple[str, ...]:
    found = tuple(names)
    if len(set(found)) < len(found) or not all(isinstance(name, str) for name in found):
        raise DataError("an Avro schema has names that repeat.")
    return found


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"an Avro schema has the number {value}.")
    return value


def _count(avro_type: AvroType) -> int:
    return 1 + sum(map(_count, avro_type.parts))


# --------------------------------------------------------------------------------------------- the decoder's schema


@dataclass(frozen=True)
class DecodedForm:
    """What values are decoded as: the schema, and the Arrow type that the decoder has for it.

    `name` is that of the schema's type, which the decoder notes at each field of it.
    """

    schema: Schema
    arrow: pa.DataType
    name: str = ""
    nullable: bool = False

    def field(self, name: str) -> pa.Field:
        noted = {"avro.name": self.name} if self.name else None
        return pa.field(name, self.arrow, self.nullable, noted)


def decoded_form(rows: AvroType, read: Sequence[bool]) -> DecodedForm:
    """How to decode the rows of a file, of whose columns some are `read`.

    Records have their fields in order, without those that have no bytes. DataError for types that cannot be decoded.
    """
    names = map("t{}".format, count())
    fields = [
        (f"f{place}", _decoded(part, is_read, names))
        for place, (part, is_read) in enumerate(zip(rows.parts, read, strict=True))
        if not part.is_empty
    ]
    return record_form(next(names), fields)


def record_form(name: str, fields: Sequence[tuple[str, DecodedForm]]) -> DecodedForm:
    listed = [{"name": field, "type": form.schema} for field, form in fields]
    schema = {"type": "record", "name": name, "fields": listed}
    return DecodedForm(schema, pa.struct([form.field(field) for field, form in fields]), name)


def array_form(items: DecodedForm) -> DecodedForm:
    return DecodedForm({"type": "array", "items": items.schema}, pa.list_(items.field("item")))


def fixed_form(name: str, size: int) -> DecodedForm:
    return DecodedForm({"type": "fixed", "name": name, "size": size}, pa.binary(size), name)


_NUMBERS = {
    "int": DecodedForm("int", pa.int32()),
    "long": DecodedForm("long", pa.int64()),
    "float": DecodedForm("float", pa.float32()),
    "double": DecodedForm("double", pa.float64()),
    "enum": DecodedForm("int", pa.int32()),
}
_BYTES = DecodedForm("bytes", pa.binary())
_TEXT = DecodedForm("string", pa.string())
_NULL = DecodedForm("null", pa.null(), nullable=True)


def _decoded(stored: AvroType, is_read: bool, names: Iterator[str]) -> DecodedForm:
    match stored.kind:
        case "boolean":
            return fixed_form(next(names), 1)
        case "bytes":
            return _BYTES
        case "string":
            return _TEXT if is_read else _BYTES
        case "fixed":
            return fixed_form(next(names), stored.size)
        case "record":
            fields = [
                (f"f{place}", _decoded(part, is_read, names))
                for place, part in enumerate(stored.parts)
                if not part.is_empty
            ]
            return record_form(next(names), fields)
        case "array":
            (items,) = stored.parts
            if items.is_empty:
                # A few bytes could be any number of them.
                raise DataError("an Avro array has items without content.")
            return array_form(_decoded(items, is_read, names))
        case "map":
            return array_form(
                _decoded(AvroType("record", (AvroType("string"), *stored.parts)), is_read, names)
            )
        case "union":
            return _union_form([_branch_form(part, names) for part in stored.parts])
        case _:
            return _NUMBERS[stored.kind]


def _branch_form(stored: AvroType, names: Iterator[str]) -> DecodedForm:
    """The form of a branch. Those that others may have, too, are fields of records: a union has none twice."""
    if stored.kind == "null":
        return _NULL
    if stored.is_empty:
        raise DataError("an Avro union has a type without content.")
    form = _decoded(stored, True, names)
    return record_form(next(names), [("value", form)]) if stored.kind in _WRAPPED else form


_WRAPPED = frozenset({"enum", "map"})


def _union_form(branches: list[DecodedForm]) -> DecodedForm:
    if len(branches) == 2 and _NULL in branches:
        # The decoder takes all numbers of branches but one for the other one, unless there are more than two.
        branches = [*branches, _NUMBERS["int" if _NUMBERS["int"] not in branches else "double"]]
    fields = []
    for form in branches:
        kind = form.schema["type"] if isinstance(form.schema, dict) else form.schema
        fields.append(form.field(form.name or str(kind)))
    arrow = pa.dense_union(fields)
    return DecodedForm([form.schema for form in branches], arrow, nullable=_NULL in branches)


def branch_values(values: pa.UnionArray, stored: AvroType, number: int) -> pa.Array:
    """The decoded values of a branch of a union."""
    branch = values.field(number)
    return branch.field(0) if stored.parts[number].kind in _WRAPPED else branch
