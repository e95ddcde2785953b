# SPDX-License-Identifier: Apache-2.0
"""INT96 timestamps of Parquet files, which Arrow shows as nanoseconds without a zone."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

# Every INT96 value is an instant. Both readers are told to read them in microseconds.
_INSTANT = pa.timestamp("us", "UTC")


def mark_instants(schema: pq.ParquetSchema) -> tuple[pa.Schema, frozenset[str]]:
    """The schema in Arrow's types, INT96 as instants at any depth, and the names of the columns with INT96."""
    stored = schema.to_arrow_schema()
    kinds = [schema.column(index).physical_type for index in range(len(schema.names))]
    if "INT96" not in kinds:
        return stored, frozenset()
    leaves = iter(kinds)
    fields = [_mark_field(field, leaves) for field in stored]
    changed = (ours.name for ours, theirs in zip(fields, stored, strict=True) if ours.type != theirs.type)
    return pa.schema(fields), frozenset(changed)


def _mark_field(field: pa.Field, leaves: Iterator[str]) -> pa.Field:
    return field.with_type(_mark(field.type, leaves))


def _mark(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """The type of a column. `leaves` are the physical types of the columns below, which come in the same order."""
    if isinstance(kind, pa.BaseExtensionType):
        return _mark(kind.storage_type, leaves)
    if pa.types.is_struct(kind):
        return pa.struct([_mark_field(field, leaves) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_mark_field(kind.key_field, leaves), _mark_field(kind.item_field, leaves))
    if pa.types.is_list(kind):
        return pa.list_(_mark_field(kind.value_field, leaves))
    if pa.types.is_large_list(kind):
        return pa.large_list(_mark_field(kind.value_field, leaves))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_mark_field(kind.value_field, leaves), kind.list_size)
    return _INSTANT if next(leaves) == "INT96" else kind
