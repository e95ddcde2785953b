# SPDX-License-Identifier: Apache-2.0
"""The order of the entries of maps in Python.

Spark's `collect` builds a `java.util.HashMap` of each map, and a dict in the order in which that is iterated: by the
buckets of Java's hash codes, and within a bucket as inserted.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.batches import list_entries


def order_entries(table: pa.Table) -> pa.Table:
    """The table, with the entries of its maps in the order of Spark's dicts, at any depth.

    Keys whose hash code depends on more than their value, such as arrays of bytes, stay in their order.
    """
    if not any(_has_maps(field.type) for field in table.schema):
        return table
    columns = [
        pa.chunked_array([_ordered(chunk) for chunk in column.chunks], column.type)
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(place).type) for place in range(kind.num_fields))


def _ordered(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _has_maps(kind):
        return array
    absent = array.is_null()
    if pa.types.is_struct(kind):
        parts = [_ordered(array.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=absent)
    if not pa.types.is_map(kind):
        lengths, values = _parts(array)
        return pa.ListArray.from_arrays(_offsets(lengths), _ordered(values), type=kind, mask=absent)
    # Arrow has these kernels for lists only.
    lengths, entries = _parts(list_entries(array))
    places = _places(entries.field(0), lengths)
    if places is not None:
        entries = entries.take(places)
    keys, items = _ordered(entries.field(0)), _ordered(entries.field(1))
    return pa.MapArray.from_arrays(_offsets(lengths), keys, items, type=kind, mask=absent)


def _parts(lists: pa.Array) -> tuple[Any, pa.Array]:
    """How many values each list has, none if it is NULL; and all of them."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lengths, lists.flatten()


def _offsets(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _places(keys: pa.Array, lengths: Any) -> pa.Array | None:
    """Where the entries are, in the order of their maps' buckets; None if they are to stay where they are."""
    if not (lengths > 1).any():
        return None
    codes = _hash_codes(keys)
    if codes is None:
        return None
    sizes = _bucket_counts(lengths)
    buckets = (codes ^ (codes >> np.uint32(16))) & (np.repeat(sizes, lengths) - 1)
    # Stable: entries of a bucket stay as they were inserted.
    return pa.array(np.lexsort((buckets, np.repeat(np.arange(len(lengths)), lengths))))


def _bucket_counts(lengths: Any) -> Any:
    """Spark creates the map for as many entries as it gets; Java then doubles a table that is more than 3/4 full."""
    sizes = 2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    return np.where(lengths > (sizes * 3) // 4, sizes * 2, sizes).astype(np.uint32)


# ----------------------------------------------------------------------------------------------- Java's hash codes


def _hash_codes(keys: pa.Array) -> Any | None:
    kind = keys.type
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return _of_integers(keys)
    if pa.types.is_floating(kind):
        # All NaN are one.
        canonical = pc.if_else(pc.is_nan(keys), pa.scalar(float("nan"), kind), keys)
        return _of_integers(canonical.view(pa.int32() if kind == pa.float32() else pa.int64()))
    if pa.types.is_boolean(kind):
        return np.where(keys.to_numpy(zero_copy_only=False), 1231, 1237).astype(np.uint32)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _of_each(keys, _of_text)
    if pa.types.is_decimal(kind):
        return _of_each(keys, _of_decimal)
    return None


def _of_integers(keys: pa.Array) -> Any:
    """Of integers, and of dates and times, which Spark keeps as such."""
    if keys.type.bit_width < 64:
        return keys.cast(pa.int32()).to_numpy(zero_copy_only=False).view(np.uint32)
    bits = keys.view(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    return (bits ^ (bits >> np.uint64(32))).astype(np.uint32)


def _of_each(keys: pa.Array, code: Callable[[Any], int]) -> Any:
    """Keys repeat, and what differs is computed one by one."""
    encoded = keys.dictionary_encode()
    codes = np.array([code(value) % 2**32 for value in encoded.dictionary.to_pylist()], np.uint32)
    return codes[encoded.indices.to_numpy(zero_copy_only=False)]


def _of_text(text: str) -> int:
    code = 0
    for unit in np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.uint16).tolist():
        code = (31 * code + unit) % 2**32
    return code


def _of_decimal(value: Decimal) -> int:
    """The code of a BigDecimal: of its digits as a number, and of its scale."""
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)))
    if number < 2**63:
        code = 31 * (number >> 32) + number % 2**32
    else:
        code = 0
        for shift in range((number.bit_length() - 1) // 32 * 32, -1, -32):
            code = (31 * code + (number >> shift) % 2**32) % 2**32
    return 31 * (-code if sign else code) - int(exponent)
