# SPDX-License-Identifier: Apache-2.0
"""The Arrow types of the columns of a Parquet file, in which INT96 is the instant that Spark takes it for.

Arrow gives INT96 the type of nanoseconds without a zone. Only the schema of the file tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

INSTANT = pa.timestamp("us", "UTC")
_INT96 = "INT96"


def column_types(schema: pq.ParquetSchema) -> tuple[list[pa.Field], frozenset[str]]:
    """The columns, and the names of those that are INT96 or have it inside."""
    leaves = iter([schema.column(index).physical_type for index in range(len(schema.names))])
    stored = list(schema.to_arrow_schema())
    columns = [field.with_type(_typed(field.type, leaves)) for field in stored]
    changed = zip(stored, columns, strict=True)
    return columns, frozenset(new.name for old, new in changed if old.type != new.type)


def _typed(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """The type, whose leaves are in the order of the file's."""

    def field(old: pa.Field) -> pa.Field:
        return old.with_type(_typed(old.type, leaves))

    if isinstance(kind, pa.BaseExtensionType):
        _typed(kind.storage_type, leaves)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([field(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    return INSTANT if next(leaves) == _INT96 else kind
