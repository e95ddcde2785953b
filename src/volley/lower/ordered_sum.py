# SPDX-License-Identifier: Apache-2.0
"""The sum of floating-point numbers in the order in which they come, as Spark adds them.

DataFusion adds the rows of an aggregate without keys in several lanes. Then 1e16 + 1 - 1e16 is 1 instead of 0, and
numbers whose sum overflows on the way may not. This takes 8 ns for a value instead of 1.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from datafusion import Accumulator, Expr, udaf


class _Sum(Accumulator):  # type: ignore[misc]  # datafusion has no types
    """NULL without a value."""

    def __init__(self) -> None:
        # As Spark begins: the sum of -0.0 is 0.0.
        self._sum = 0.0
        self._is_empty = True

    def update(self, *values: pa.Array) -> None:
        present = values[0].drop_null() if values[0].null_count else values[0]
        if len(present):
            with np.errstate(over="ignore", invalid="ignore"):
                sums = np.add.accumulate(np.concatenate(([self._sum], present.to_numpy())))
            self._sum, self._is_empty = float(sums[-1]), False

    def merge(self, states: list[pa.Array]) -> None:
        self.update(states[0])

    def state(self) -> list[pa.Scalar]:
        return [self.evaluate()]

    def evaluate(self) -> pa.Scalar:
        return pa.scalar(None if self._is_empty else self._sum, pa.float64())


_sum = udaf(_Sum, pa.float64(), pa.float64(), [pa.float64()], "immutable", "volley_ordered_sum")


def ordered_sum(values: Expr) -> Expr:
    """The sum of doubles, as a DataFusion aggregate."""
    return _sum(values)
