# SPDX-License-Identifier: Apache-2.0
"""Columns of Parquet files that are found by field ids: the names in a file may be those of other columns by now.

    wanted   person: struct<id 2: full_name, id 5: city>
    file     p:      struct<id 2: name, id 4: city>             id 5 is NULL, or its default

Ids are looked for at each level on its own, as Spark and Iceberg do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from volley.batches import conform
from volley.errors import DataError
from volley.plan.nodes import StoredColumn
from volley.plan.types import ArrayType, DataType, MapType, StructType, to_arrow

_ID = b"PARQUET:field_id"


def field_id(field: pa.Field) -> int | None:
    """The Parquet field id of a column of a file, or of a field inside one."""
    found = (field.metadata or {}).get(_ID)
    return None if found is None else int(found)


def has_ids(fields: Iterable[pa.Field]) -> bool:
    """Whether one of these fields has an id, or one inside it."""
    return any(field_id(field) is not None or has_ids(_inner(field.type)) for field in fields)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def find_by_id(fields: Sequence[pa.Field], wanted: StoredColumn) -> pa.Field | None:
    """The field with the id of the column. DataError if there are several."""
    found = [field for field in fields if field_id(field) == wanted.id]
    if len(found) > 1:
        names = ", ".join(field.name for field in found)
        raise DataError(f"the fields {names} have the id {wanted.id} of the column {wanted.name}.")
    return found[0] if found else None


def find_field(
    fields: Sequence[pa.Field], name: str, wanted: StoredColumn | None
) -> tuple[pa.Field | None, bool]:
    """The field of a struct in a file, and whether that is certain. By name, it must be spelled as in the table."""
    if wanted is not None and wanted.id is not None:
        return find_by_id(fields, wanted), True
    same = [field for field in fields if field.name.lower() == name.lower()]
    is_certain = [field.name for field in same] == [name]
    return (same[0], True) if is_certain else (None, False)


def is_mistakable(fields: Sequence[pa.Field], wanted: StoredColumn, found: pa.Field | None) -> bool:
    """Whether another field has the name of the column, or of a field inside it. `found` is the right one."""
    same = [field for field in fields if field.name.lower() == wanted.name.lower()]
    if any(field is not found for field in same):
        return True
    if found is None or not pa.types.is_struct(found.type):
        return False
    inside = list(found.type)
    return any(is_mistakable(inside, part, find_field(inside, part.name, part)[0]) for part in wanted.parts)


def part_of(wanted: StoredColumn | None, place: int) -> StoredColumn | None:
    """The element of an array (0), or the key (0) or the value (1) of a map; None if it is found by name."""
    return wanted.parts[place] if wanted is not None and wanted.parts else None


def is_same_inside(found: pa.DataType, wanted: DataType, stored: StoredColumn | None) -> bool:
    """Whether a column has the form in the file that it has in the table, with the same names of all fields inside."""
    match wanted:
        case StructType(fields):
            for field in fields:
                part = stored.part(field.name) if stored is not None else None
                there, _ = find_field(list(found), field.name, part)
                if there is None or there.name != field.name:
                    return False
                if not is_same_inside(there.type, field.type, part):
                    return False
            return bool(len({field.name.lower() for field in found}) == found.num_fields)
        case ArrayType(element, _):
            # Large lists have other offsets.
            return pa.types.is_list(found) and is_same_inside(found.value_type, element, part_of(stored, 0))
        case MapType(key, value, _):
            # DataFusion does not convert what is in maps.
            return _is_equal(found, to_arrow(wanted)) and (
                is_same_inside(found.key_type, key, part_of(stored, 0))
                and is_same_inside(found.item_type, value, part_of(stored, 1))
            )
        case _:
            return True


def _is_equal(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether types differ in nothing but what may be NULL, and in metadata."""
    if pa.types.is_struct(wanted):
        names = [field.name for field in wanted]
        return (
            pa.types.is_struct(found)
            and [field.name for field in found] == names
            and all(_is_equal(one.type, other.type) for one, other in zip(found, wanted, strict=True))
        )
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(found)
            and _is_equal(found.key_type, wanted.key_type)
            and _is_equal(found.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return pa.types.is_list(found) and _is_equal(found.value_type, wanted.value_type)
    return bool(found == wanted)


def read_as(values: pa.Array, wanted: DataType, stored: StoredColumn | None) -> pa.Array:
    """The values of a column of a file as the table has them."""
    target = to_arrow(wanted)
    match wanted:
        case StructType(fields):
            names = [field.name for field in values.type]
            children = []
            for field in fields:
                part = stored.part(field.name) if stored is not None else None
                there, _ = find_field(list(values.type), field.name, part)
                children.append(
                    constant(part, field.type, len(values))
                    if there is None
                    else read_as(values.field(names.index(there.name)), field.type, part)
                )
            return pa.StructArray.from_arrays(children, fields=list(target), mask=values.is_null())
        case ArrayType(element, _):
            if pa.types.is_large_list(values.type):
                values = values.cast(pa.list_(values.type.value_field))
            inner = read_as(values.values, element, part_of(stored, 0))
            return _with_offsets(values, target, inner)
        case MapType(key, value, _):
            keys = read_as(values.keys, key, part_of(stored, 0))
            items = read_as(values.items, value, part_of(stored, 1))
            entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
            return _with_offsets(values, target, entries)
        case _:
            return conform(values, target)


def _with_offsets(values: pa.Array, target: pa.DataType, inner: pa.Array) -> pa.Array:
    """Lists or maps of other elements, each as long as before."""
    return pa.Array.from_buffers(target, len(values), values.buffers()[:2], -1, values.offset, [inner])


def constant(stored: StoredColumn | None, wanted: DataType, rows: int) -> pa.Array:
    """A column that a file does not have."""
    default = None if stored is None else stored.default
    target = to_arrow(wanted)
    return pa.nulls(rows, target) if default is None else pa.repeat(pa.scalar(default, target), rows)
