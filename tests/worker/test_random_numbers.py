# SPDX-License-Identifier: Apache-2.0
"""Spark's random numbers, many at a time, are those of its generator, one after the other."""

from __future__ import annotations

import pytest

from volley.worker.random_numbers import BLOCK, RandomNumbers, hash_seed

MASK = (1 << 64) - 1


def one_by_one(seed: int, count: int) -> list[float]:
    state = hash_seed(seed)

    def bits(number: int) -> int:
        nonlocal state
        state ^= state << 21 & MASK
        state ^= state >> 35
        state ^= state << 4 & MASK
        return state & ((1 << number) - 1)

    return [((bits(26) << 27) + bits(27)) * 2.0**-53 for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**63])
def test_blocks_follow_one_another(seed: int) -> None:
    count = BLOCK + 10
    numbers = RandomNumbers(seed)
    taken = [number for rows in (1, 0, BLOCK - 3, 12) for number in numbers.doubles(rows)]
    assert taken == one_by_one(seed, count)


def test_seeds_are_numbers_of_64_bits() -> None:
    assert hash_seed(2**63) == hash_seed(-(2**63)) != hash_seed(0)
