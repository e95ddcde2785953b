# SPDX-License-Identifier: Apache-2.0
"""Normally distributed numbers as Java's `Random.nextGaussian` makes them, many at a time.

Two uniform numbers are a point of a square. One that is not inside the circle is rejected, and any other gives two
normal numbers. Java computes their logarithm by the code of fdlibm, whose last bit is not always that of other
libraries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from volley.worker.random_numbers import RandomNumbers

Doubles = npt.NDArray[np.float64]


class NormalNumbers:
    """The normal numbers of Spark's `XORShiftRandom` from a seed."""

    def __init__(self, seed: int) -> None:
        self._uniform = RandomNumbers(seed)
        self._held: Doubles = np.empty(0)

    def doubles(self, count: int) -> Doubles:
        """The next numbers."""
        parts = [self._held]
        found = len(self._held)
        while found < count:
            # About a fifth of the points are outside.
            parts.append(self._pairs((count - found) * 2 // 3 + 16))
            found += len(parts[-1])
        numbers = np.concatenate(parts)
        self._held = numbers[count:]
        return numbers[:count]

    def _pairs(self, points: int) -> Doubles:
        places = 2 * self._uniform.doubles(2 * points).reshape(-1, 2) - 1
        x, y = places[:, 0], places[:, 1]
        squares = x * x + y * y
        inside = (squares < 1) & (squares != 0)
        kept = squares[inside]
        found: Doubles = places[inside] * np.sqrt(-2 * log(kept) / kept)[:, None]
        return found.reshape(-1)


_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ODD = (
    6.666666666666735130e-01,
    2.857142874366239149e-01,
    1.818357216161805012e-01,
    1.479819860511658591e-01,
)
_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_SIGNIFICAND = 0xFFFFF


def log(values: Doubles) -> Doubles:
    """The natural logarithm of fdlibm (`__ieee754_log`), of normal numbers above 0."""
    bits = values.view(np.int64)
    high = bits >> 32
    exponent = (high >> 20) - 1023
    high &= _SIGNIFICAND
    # The significand is between the roots of 1/2 and 2.
    carry = (high + 0x95F64) & 0x100000
    exponent += carry >> 20
    rest = ((high | (carry ^ 0x3FF00000)) << 32 | (bits & 0xFFFFFFFF)).view(np.float64) - 1.0
    scale = exponent.astype(np.float64)
    return np.where(
        (_SIGNIFICAND & (2 + high)) < 3, _log_near_one(rest, scale), _log_of_rest(rest, scale, high)
    )


def _log_near_one(rest: Doubles, scale: Doubles) -> Doubles:
    correction = rest * rest * (0.5 - 0.33333333333333333 * rest)
    scaled = scale * _LN2_HIGH - ((correction - scale * _LN2_LOW) - rest)
    exact = scale * _LN2_HIGH + scale * _LN2_LOW
    return np.where(rest == 0, exact, np.where(scale == 0, rest - correction, scaled))


def _log_of_rest(rest: Doubles, scale: Doubles, high: npt.NDArray[np.int64]) -> Doubles:
    s = rest / (2.0 + rest)
    z = s * s
    w = z * z
    even = w * (_EVEN[0] + w * (_EVEN[1] + w * _EVEN[2]))
    odd = z * (_ODD[0] + w * (_ODD[1] + w * (_ODD[2] + w * _ODD[3])))
    series = odd + even
    half = 0.5 * rest * rest
    with_half = half - (s * (half + series) + scale * _LN2_LOW)
    unscaled_half = rest - (half - s * (half + series))
    without = s * (rest - series) - scale * _LN2_LOW
    unscaled = rest - s * (rest - series)
    is_middle = ((high - 0x6147A) | (0x6B851 - high)) > 0
    return np.where(
        is_middle,
        np.where(scale == 0, unscaled_half, scale * _LN2_HIGH - (with_half - rest)),
        np.where(scale == 0, unscaled, scale * _LN2_HIGH - (without - rest)),
    )
