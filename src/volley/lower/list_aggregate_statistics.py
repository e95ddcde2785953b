# SPDX-License-Identifier: Apache-2.0
"""Moments, correlations, regressions and percentiles of the values of each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from volley.lower.functions.constants import constant_value
from volley.lower.grouped_values import Finish, GroupedValues, drop_nulls, floats, order_codes
from volley.lower.semantics import ExactnessError
from volley.lower.sequential_moments import FAILS_ON_ZERO_VARIANCE
from volley.plan.expressions import AggregateCall
from volley.plan.types import ArrayType, to_arrow


@dataclass(frozen=True)
class _Moments:
    """Central moments of one or two numbers by group. `n` counts the rows in which all numbers are present."""

    n: Any
    mean_x: Any
    mean_y: Any
    m2: Any
    m3: Any
    m4: Any
    y2: Any
    xy: Any


def moments(call: AggregateCall) -> Finish:
    evaluate = MOMENTS[call.function.function]
    refuses_zero = call.function.option(FAILS_ON_ZERO_VARIANCE) is True

    def finish(grouped: GroupedValues) -> pa.Array:
        found = _moments(drop_nulls(grouped))
        if refuses_zero and np.any((found.n > 1) & (found.m2 * found.y2 == 0)):
            raise ExactnessError("a variance of zero, which is an error in this release of Spark")
        with np.errstate(all="ignore"):
            values, null = evaluate(found)
        return pa.array(values, pa.float64(), mask=null | (found.n == 0))

    return finish


def _moments(grouped: GroupedValues) -> _Moments:
    n = grouped.counts.astype(np.float64)
    with np.errstate(all="ignore"):
        x, mean_x = _centre(grouped, floats(grouped.columns[0]))
        y, mean_y = _centre(grouped, floats(grouped.columns[-1]))
        return _Moments(
            n,
            mean_x,
            mean_y,
            m2=grouped.sums(x * x),
            m3=grouped.sums(x * x * x),
            m4=grouped.sums(x * x * x * x),
            y2=grouped.sums(y * y),
            xy=grouped.sums(x * y),
        )


def _centre(grouped: GroupedValues, numbers: Any) -> tuple[Any, Any]:
    """The numbers minus their mean, and the mean.

    Relative to a group's first number, the mean of equal numbers is exact, and so their variance exactly zero.
    """
    if not len(numbers):
        return numbers, np.zeros(grouped.size)
    pivots = numbers[np.minimum(grouped.starts, len(numbers) - 1)]
    shifted = numbers - pivots[grouped.groups]
    means = grouped.sums(shifted) / np.maximum(grouped.counts, 1)
    return shifted - means[grouped.groups], pivots + means


def _never(found: _Moments) -> Any:
    return np.zeros(len(found.n), bool)


def _correlation(found: _Moments) -> tuple[Any, Any]:
    null = (found.n == 1) | (found.m2 == 0) | (found.y2 == 0)
    product = found.m2 * found.y2
    if np.any((product == 0) & (found.n > 1) & ~null):
        raise ExactnessError("a division by zero")
    return found.xy / np.sqrt(product), null


def _r_squared(found: _Moments) -> tuple[Any, Any]:
    ratio, _ = _correlation(found)
    return np.where(found.m2 == 0, 1.0, ratio * ratio), found.y2 == 0


# The functions of two arguments take (y, x), as in `regr_slope(y, x)`.
MOMENTS: dict[str, Callable[[_Moments], tuple[Any, Any]]] = {
    "Skewness": lambda m: (np.sqrt(m.n) * m.m3 / np.sqrt(m.m2 * m.m2 * m.m2), m.m2 == 0),
    "Kurtosis": lambda m: (m.n * m.m4 / (m.m2 * m.m2) - 3.0, m.m2 == 0),
    "CovPopulation": lambda m: (m.xy / m.n, _never(m)),
    "CovSample": lambda m: (m.xy / (m.n - 1.0), m.n == 1),
    "Corr": _correlation,
    "RegrR2": _r_squared,
    "RegrSlope": lambda m: (m.xy / m.y2, m.y2 == 0),
    "RegrIntercept": lambda m: (m.mean_x - m.xy / m.y2 * m.mean_y, m.y2 == 0),
    "RegrSXY": lambda m: (m.xy, _never(m)),
    "RegrReplacement": lambda m: (m.m2, _never(m)),
}


# -------------------------------------------------------------------------------------------- percentiles


_WEIGHS_NEIGHBOURS = "weighsNeighbours"
"""The option of `Percentile` in releases of Spark that multiply both neighbours, instead of their difference."""


def percentiles(call: AggregateCall) -> Finish:
    """Percentiles of sorted values: interpolated between two of them, or one of them (`percentile_disc`)."""
    wanted = constant_value(call.function.arguments[1])
    shares = wanted if isinstance(wanted, list) else [wanted]
    reverse = call.function.option("reverse") is True
    discrete = call.function.function == "PercentileDisc"
    weighs = call.function.option(_WEIGHS_NEIGHBOURS) is True

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        (values,) = present.columns
        _refuse_negative_zero(values)
        codes = order_codes(values, not reverse)
        order = np.lexsort((codes, present.groups))
        found = [_percentile(present, values, codes, order, share, discrete, weighs) for share in shares]
        if not isinstance(call.type, ArrayType):
            return pa.array(found[0], mask=~present.present)
        flat = np.stack(found, axis=1).ravel()
        offsets = np.arange(0, len(flat) + 1, len(shares), dtype=np.int32)
        mask = None if present.present.all() else pa.array(~present.present)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(flat), type=to_arrow(call.type), mask=mask
        )

    return finish


def approximate_percentiles(call: AggregateCall) -> Finish:
    """percentile_approx of groups so small that Spark's summary keeps every value: it gives one of them then.

    Spark merges values that are closer than `rows / accuracy`, in an order that depends on its partitions.
    """
    wanted, accuracy = map(constant_value, call.function.arguments[1:])
    shares = wanted if isinstance(wanted, list) else [wanted]
    error = 1.0 / accuracy

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        (values,) = present.columns
        _refuse_inexact(values)
        counts = present.counts
        if len(counts) and 2 * counts.max() >= accuracy:
            raise ExactnessError("more values than percentile_approx keeps")
        order = np.lexsort((order_codes(values), present.groups))
        absent = ~present.present
        found = []
        for share in shares:
            rank = np.ceil(counts * share).astype(np.int64) - 1
            place = np.zeros_like(rank) if share <= error else counts - 1 if share >= 1 - error else rank
            row = order[np.clip(present.starts + place, 0, len(order) - 1)] if len(order) else counts
            found.append(values.take(pa.array(np.where(absent, 0, row), mask=absent)))
        if not isinstance(call.type, ArrayType):
            return found[0]
        size, width = present.size, len(shares)
        places = np.arange(size * width).reshape(width, size).T.ravel()
        flat = pa.concat_arrays(found).take(pa.array(places))
        offsets = np.arange(0, size * width + 1, width, dtype=np.int32)
        mask = pa.array(absent) if absent.any() else None
        return pa.ListArray.from_arrays(pa.array(offsets), flat, type=to_arrow(call.type), mask=mask)

    return finish


# Spark's summaries hold doubles.
_LARGEST_EXACT = 2**53


def _refuse_inexact(values: pa.Array) -> None:
    if pa.types.is_floating(values.type):
        _refuse_negative_zero(values)
        if np.isnan(floats(values)).any():
            raise ExactnessError("NaN, which summaries keep anywhere")
    elif values.type.bit_width == 64:
        numbers = values.view(pa.int64()).to_numpy(zero_copy_only=False)
        if len(numbers) and max(abs(int(numbers.min())), abs(int(numbers.max()))) > _LARGEST_EXACT:
            raise ExactnessError("numbers that doubles do not hold")


def _percentile(
    present: GroupedValues,
    values: pa.Array,
    codes: Any,
    order: Any,
    share: float,
    discrete: bool,
    weighs: bool,
) -> Any:
    counts = present.counts
    if discrete:
        low = high = np.maximum(np.ceil(counts * share) - 1, 0).astype(np.int64)
        position = low.astype(np.float64)
    else:
        position = np.maximum(counts - 1, 0) * share
        low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    if not len(order):
        return np.zeros(present.size)
    first, second = (order[np.minimum(present.starts + place, len(order) - 1)] for place in (low, high))
    below, above = _doubles(values, first), _doubles(values, second)
    with np.errstate(all="ignore"):
        if weighs:
            between = (high - position) * below + (position - low) * above
        else:
            between = below + (position - low) * (above - below)
    return np.where(codes[first] == codes[second], below, between)


def _doubles(values: pa.Array, places: Any) -> Any:
    taken = values.take(pa.array(places))
    if pa.types.is_decimal(values.type):
        # As Java: the nearest double. Arrow's cast may be off by one in the last place.
        return np.array([float(value) for value in taken.to_pylist()])
    return floats(taken)


def _refuse_negative_zero(values: pa.Array) -> None:
    if pa.types.is_floating(values.type):
        numbers = floats(values)
        if np.any((numbers == 0) & np.signbit(numbers)):
            raise ExactnessError("-0.0, which Spark sorts anywhere among zeros")
