# SPDX-License-Identifier: Apache-2.0
"""Gives variants in rows the bytearrays that they have in Spark's `collect`.

PySpark's conversion of Arrow tables gives them bytes, which are hashable and print differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def make_variants_mutable(rows: list[Row], schema: StructType) -> list[Row]:
    """The same rows, changed in place."""
    columns = [place for place, field in enumerate(schema.fields) if _has_variants(field.dataType)]
    for place in columns:
        _change(row[place] for row in rows)
    return rows


def _has_variants(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_variants(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_variants(kind.elementType)
        case MapType():
            return _has_variants(kind.valueType)
        case _:
            # By name: PySpark 3.5 has no such type.
            return type(kind).__name__ == "VariantType"


def _change(values: Iterable[Any]) -> None:
    for value in values:
        match value:
            case list() | tuple():
                _change(value)
            case dict():
                _change(value.values())
            case _ if type(value).__name__ == "VariantVal":
                value.value, value.metadata = bytearray(value.value), bytearray(value.metadata)
