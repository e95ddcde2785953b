# SPDX-License-Identifier: Apache-2.0
"""Columns of generated tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa


def map_numbers(numbers: np.ndarray, text: Callable[[int], str]) -> pa.Array:
    """One text for each number. The text of each distinct number is made once."""
    distinct, places = np.unique(numbers, return_inverse=True)
    return pa.array([text(int(number)) for number in distinct]).take(pa.array(places))
