# SPDX-License-Identifier: Apache-2.0
"""Decimals as files hold them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import DataError
from volley.plan.types import DecimalType, to_arrow

_DECIMAL_BYTES = 16


def decimals_of(values: pa.Array, data_type: DecimalType) -> pa.Array:
    """The numbers that binary values hold in as many bytes as each needs, the highest first.

    Raises DataError if one has no bytes, more than Arrow's decimals, or too many digits.
    """
    starts = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    # There is no buffer if all are NULL.
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    absent = values.is_null().to_numpy(zero_copy_only=False)
    lengths = np.diff(starts)
    numbers = np.zeros((len(values), _DECIMAL_BYTES), np.uint8)
    for length in np.unique(lengths[~absent]):
        if not 0 < length <= _DECIMAL_BYTES:
            raise DataError(f"a decimal has {length} bytes.")
        rows = np.flatnonzero((lengths == length) & ~absent)
        digits = content[starts[rows][:, None] + np.arange(length)]
        numbers[rows, :length] = digits[:, ::-1]
        numbers[rows, length:] = np.where(digits[:, :1] >= 0x80, 0xFF, 0)
    # The bits of a boolean array are those of a bitmap.
    present = pa.array(~absent).buffers()[1]
    found = pa.Array.from_buffers(to_arrow(data_type), len(values), [present, pa.py_buffer(numbers)])
    check_precision(found, data_type)
    return found


def check_precision(values: pa.Array, data_type: DecimalType) -> None:
    """Raise DataError for a value with too many digits, which Arrow does not look at."""
    bounds = pc.min_max(values)
    limit = Decimal(10) ** (data_type.precision - data_type.scale)
    if any(
        bound is not None and abs(bound) >= limit for bound in (bounds["min"].as_py(), bounds["max"].as_py())
    ):
        raise DataError(f"a number has too many digits for {data_type}.")
