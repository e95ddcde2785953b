# SPDX-License-Identifier: Apache-2.0
"""Moments, covariances and regressions of values in a known order: equal to Spark's to the last bit.

Spark updates them value by value. Here the groups go side by side: one step updates all groups by their next value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from volley.lower.grouped_values import Finish, GroupedValues, drop_nulls, floats
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import AggregateCall


@dataclass(frozen=True)
class _Moments:
    """By group: the number of values, and moments of x and of y, which is x itself for functions of one argument."""

    n: Any
    mean_x: Any
    mean_y: Any
    m2: Any
    m3: Any
    m4: Any
    x2: Any
    y2: Any
    xy: Any


def sequential_moments(call: AggregateCall) -> Finish:
    evaluate = _FUNCTIONS[call.function.function]
    # The independent variable is the second argument.
    places = (-1, 0) if call.function.function in ("RegrSlope", "RegrIntercept") else (0, -1)
    refuses_zero = call.function.option(FAILS_ON_ZERO_VARIANCE) is True

    def finish(grouped: GroupedValues) -> pa.Array:
        present = drop_nulls(grouped)
        x, y = (floats(present.columns[place]) for place in places)
        with np.errstate(all="ignore"):
            found = _accumulate(present, x, y)
            if refuses_zero and np.any((found.n > 1) & (found.x2 * found.y2 == 0)):
                raise ExactnessError("a variance of zero, which is an error in this release of Spark")
            values, null = evaluate(found)
        return pa.array(values, pa.float64(), mask=null | (found.n == 0))

    return finish


FAILS_ON_ZERO_VARIANCE = "failsOnZeroVariance"
"""The option of `Corr` in releases of Spark in which it divides by zero."""


def _accumulate(grouped: GroupedValues, x: Any, y: Any) -> _Moments:
    order = np.argsort(-grouped.counts, kind="stable")
    counts, starts = grouped.counts[order], grouped.starts[order]
    mean_x, mean_y, m2, m3, m4, x2, y2, xy = np.zeros((8, grouped.size))
    for step in range(counts[0] if len(counts) else 0):
        # The groups that have another value are the first ones.
        some = slice(int(np.searchsorted(-counts, -step)))
        rows = starts[some] + step
        n = step + 1.0
        dx, dy = x[rows] - mean_x[some], y[rows] - mean_y[some]
        part = dx / n
        mean_x[some] += part
        mean_y[some] += dy / n
        m2[some] += dx * (dx - part)
        square, small = dx * dx, part * part
        m3[some] = m3[some] - 3.0 * part * m2[some] + dx * (square - small)
        m4[some] = (
            m4[some] - 4.0 * part * m3[some] - 6.0 * small * m2[some] + dx * (dx * square - part * small)
        )
        x2[some] += dx * (x[rows] - mean_x[some])
        y2[some] += dy * (y[rows] - mean_y[some])
        xy[some] += dx * (y[rows] - mean_y[some])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    found = (counts.astype(np.float64), mean_x, mean_y, m2, m3, m4, x2, y2, xy)
    return _Moments(*(values[places] for values in found))


def _never(found: _Moments) -> Any:
    return np.zeros(len(found.n), bool)


def _divide(numerator: Any, denominator: Any, null: Any) -> tuple[Any, Any]:
    """A quotient. Where the denominator is zero for another reason than that the result is NULL, Spark may raise."""
    if np.any((denominator == 0) & ~null):
        raise ExactnessError("a division by zero")
    return numerator / denominator, null


def _r_squared(m: _Moments) -> tuple[Any, Any]:
    null, is_constant = (m.n == 0) | (m.y2 == 0), m.x2 == 0
    ratio, _ = _divide(m.xy, np.sqrt(m.x2 * m.y2), null | is_constant)
    return np.where(is_constant, 1.0, ratio * ratio), null


def _skewness(m: _Moments) -> tuple[Any, Any]:
    return _divide(np.sqrt(m.n) * m.m3, np.sqrt(m.m2 * m.m2 * m.m2), (m.n == 0) | (m.m2 == 0))


def _kurtosis(m: _Moments) -> tuple[Any, Any]:
    ratio, null = _divide(m.n * m.m4, m.m2 * m.m2, (m.n == 0) | (m.m2 == 0))
    return ratio - 3.0, null


_FUNCTIONS: dict[str, Callable[[_Moments], tuple[Any, Any]]] = {
    "VarianceSamp": lambda m: (m.m2 / (m.n - 1.0), m.n == 1),
    "VariancePop": lambda m: (m.m2 / m.n, _never(m)),
    "StddevSamp": lambda m: (np.sqrt(m.m2 / (m.n - 1.0)), m.n == 1),
    "StddevPop": lambda m: (np.sqrt(m.m2 / m.n), _never(m)),
    "Skewness": _skewness,
    "Kurtosis": _kurtosis,
    "CovPopulation": lambda m: (m.xy / m.n, _never(m)),
    "CovSample": lambda m: (m.xy / (m.n - 1.0), m.n == 1),
    "Corr": lambda m: _divide(m.xy, np.sqrt(m.x2 * m.y2), (m.n <= 1) | (m.x2 == 0) | (m.y2 == 0)),
    "RegrR2": _r_squared,
    "RegrSlope": lambda m: (m.xy / m.m2, m.m2 == 0),
    "RegrIntercept": lambda m: (m.mean_y - m.xy / m.m2 * m.mean_x, m.m2 == 0),
    "RegrSXY": lambda m: (m.xy, _never(m)),
    "RegrReplacement": lambda m: (m.m2, _never(m)),
}
SEQUENTIAL = frozenset(_FUNCTIONS)
