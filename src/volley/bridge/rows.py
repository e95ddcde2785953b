# SPDX-License-Identifier: Apache-2.0
"""Arrow tables as PySpark's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.pandas.types import _dedup_names
from pyspark.sql.types import StructType

from volley.batches import conform
from volley.bridge.ambiguous_times import mark_folds
from volley.bridge.map_order import order_entries
from volley.bridge.row_conversion import convert_rows
from volley.bridge.variants import make_variants_mutable
from volley.errors import DataError
from volley.spark_versions.registry import current


def to_rows(table: pa.Table, schema: StructType, **options: Any) -> list[Row]:
    """The rows that `collect` returns. `options` are those of PySpark's own conversion of Arrow tables.

    Raises DataError for a date, a time or an interval that Python does not have: Spark fails, in words of its own.
    """
    # PySpark looks fields of structs up by name, and expects these distinct ones where a name repeats.
    table = order_entries(_with_distinct_fields(table))
    try:
        return mark_folds(make_variants_mutable(_conversion()(table, schema, **options), schema), table)
    except OverflowError as error:
        raise DataError(f"a value of the result is outside Python's range: {error}.") from error


def _conversion() -> Callable[..., list[Row]]:
    if not current().has_row_conversion:
        return convert_rows
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    return ArrowTableToRowsConversion.convert


def _with_distinct_fields(table: pa.Table) -> pa.Table:
    types = [_distinct(field.type) for field in table.schema]
    if types == table.schema.types:
        return table
    columns = [
        pa.chunked_array([conform(chunk, kind) for chunk in column.chunks], kind)
        for column, kind in zip(table.columns, types, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _distinct(kind: pa.DataType) -> pa.DataType:
    """The type, with the names that PySpark gives to fields of a struct that share one."""
    match kind:
        case pa.StructType():
            names = _dedup_names([field.name for field in kind])
            fields = zip(kind, names, strict=True)
            return pa.struct(
                [field.with_name(name).with_type(_distinct(field.type)) for field, name in fields]
            )
        case pa.ListType():
            return pa.list_(kind.value_field.with_type(_distinct(kind.value_type)))
        case pa.MapType():
            item = kind.item_field.with_type(_distinct(kind.item_type))
            return pa.map_(kind.key_field.with_type(_distinct(kind.key_type)), item)
        case _:
            return kind
