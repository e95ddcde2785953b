# SPDX-License-Identifier: Apache-2.0
"""Normal numbers, without Spark: in any division into batches the same, by a logarithm that is nearly exact."""

from __future__ import annotations

import math

import numpy as np

from volley.worker.normal_numbers import NormalNumbers, log


def test_batches_follow_one_another() -> None:
    numbers = NormalNumbers(7)
    taken = np.concatenate([numbers.doubles(count) for count in (1, 0, 5, 8_192, 3)])
    assert taken.tolist() == NormalNumbers(7).doubles(8_201).tolist()
    assert abs(taken.mean()) < 0.05
    assert abs(taken.std() - 1) < 0.05


def test_the_logarithm_is_that_of_fdlibm() -> None:
    values = np.concatenate([np.random.default_rng(3).random(20_000), 1 + np.arange(-30, 30) * 2.0**-22])
    values = np.concatenate([values, [0.5, 1.0, 2.0**-1022, math.sqrt(0.5), 1e300]])
    exact = np.array([math.log(value) for value in values])
    # Less than one unit in the last place off, as fdlibm promises.
    assert (np.abs(log(values) - exact) <= np.spacing(np.abs(exact))).all()
    assert log(np.array([0.5, 1.0])).tolist() == [-math.log(2), 0.0]
