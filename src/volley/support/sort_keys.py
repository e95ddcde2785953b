# SPDX-License-Identifier: Apache-2.0
"""Which values native sorts put into Spark's order."""

from __future__ import annotations

from volley.plan.types import FRACTIONAL, NULL, ArrayType, DataType, StructType, contains_any, is_comparable


def is_sorted_alike(data_type: DataType) -> bool:
    """Whether the native order of such values is Spark's.

    A struct is sorted by its fields, one after the other. The elements of an array are compared as they are, and
    Arrow's order tells -0.0 from 0.0.
    """
    match data_type:
        case StructType(fields):
            return all(is_sorted_alike(field.type) for field in fields)
        case ArrayType(element, _):
            return is_comparable(element) and not contains_any(element, _NOT_IN_ARRAYS)
        case _:
            return is_comparable(data_type)


_NOT_IN_ARRAYS = frozenset({*FRACTIONAL, NULL})
