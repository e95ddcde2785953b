# SPDX-License-Identifier: Apache-2.0
"""Spark's random numbers, many at a time.

Spark's generator turns one 64-bit state into the next by shifts and exclusive ors. Such a step is linear over bits, so
many steps at once are one linear map, too. A block of numbers comes from `_LANES` states that are `_STEPS` steps apart
and advance together.

    state 0            ---- _STEPS steps ---->        lane 0
    state _STEPS       ---- _STEPS steps ---->        lane 1
    ...
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.uint64]

# A double takes two steps.
_STEPS = 16
_LANES = 4_096
BLOCK = _LANES * _STEPS // 2
_UNIT = 1.0 / (1 << 53)
_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


class RandomNumbers:
    """Spark's `XORShiftRandom` from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = hash_seed(seed)
        self._held = np.empty(0, dtype=np.uint64)

    def doubles(self, count: int) -> npt.NDArray[np.float64]:
        """The next numbers, uniform from 0 to 1."""
        states = self._next(2 * count)
        high, low = states[::2] & np.uint64((1 << 26) - 1), states[1::2] & np.uint64((1 << 27) - 1)
        found: npt.NDArray[np.float64] = ((high << np.uint64(27)) + low).astype(np.float64) * _UNIT
        return found

    def integers(self, count: int) -> npt.NDArray[np.int64]:
        """The next numbers of 32 bits, with a sign."""
        return self._next(count).astype(np.uint32).view(np.int32).astype(np.int64)

    def _next(self, count: int) -> States:
        """The states after each of the next steps."""
        parts = []
        while count > len(self._held):
            parts.append(self._held)
            count -= len(self._held)
            self._held = self._block()
        parts.append(self._held[:count])
        self._held = self._held[count:]
        return np.concatenate(parts)

    def _block(self) -> States:
        lanes = np.array([self._state], dtype=np.uint64)
        for leap in _leaps():
            lanes = np.concatenate([lanes, _apply(leap, lanes)])
        found = np.empty((_STEPS, _LANES), dtype=np.uint64)
        for place in range(_STEPS):
            lanes = found[place] = _step(lanes)
        self._state = int(lanes[-1])
        flat: States = found.T.reshape(-1)
        return flat


def _step(states: States) -> States:
    states = states ^ (states << np.uint64(21))
    states ^= states >> np.uint64(35)
    states ^= states << np.uint64(4)
    return states


Tables = npt.NDArray[np.uint64]
"""A linear map of states: for each byte of a state what each of its values contributes."""


@cache
def _leaps() -> tuple[Tables, ...]:
    """The maps that double the lanes until there are enough: as many steps as all lanes so far take."""
    one = _tables(_step(np.uint64(1) << np.arange(64, dtype=np.uint64)))
    for _ in range(_STEPS.bit_length() - 1):
        one = _twice(one)
    leaps = [one]
    while 2 << len(leaps) - 1 < _LANES:
        leaps.append(_twice(leaps[-1]))
    return tuple(leaps)


def _twice(leap: Tables) -> Tables:
    bits = np.uint64(1) << np.arange(64, dtype=np.uint64)
    return _tables(_apply(leap, _apply(leap, bits)))


def _tables(images: States) -> Tables:
    """The map with these images of the 64 bits."""
    found = np.zeros((8, 256), dtype=np.uint64)
    values = np.arange(256)
    for byte in range(8):
        for bit in range(8):
            found[byte, (values >> bit) & 1 == 1] ^= images[8 * byte + bit]
    return found


def _apply(leap: Tables, states: States) -> States:
    found = np.zeros_like(states)
    for byte in range(8):
        found ^= leap[byte][((states >> np.uint64(8 * byte)) & np.uint64(255)).astype(np.intp)]
    return found


# ------------------------------------------------------------------------------------------------ the seed

# Scala's, for arrays.
_ARRAY_SEED = 0x3C074A61


def hash_seed(seed: int) -> int:
    """The first state, by MurmurHash3 of the seed."""
    data = (seed & _MASK64).to_bytes(8, "big")
    low = _murmur(data, _ARRAY_SEED)
    return (_murmur(data, low) << 32) | low


def _murmur(data: bytes, seed: int) -> int:
    value = seed
    for word in _words(data):
        value ^= _rotate(word * 0xCC9E2D51 & _MASK32, 15) * 0x1B873593 & _MASK32
        value = (_rotate(value, 13) * 5 + 0xE6546B64) & _MASK32
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK32
    return value ^ value >> 16


def _words(data: bytes) -> Iterator[int]:
    for place in range(0, len(data), 4):
        yield int.from_bytes(data[place : place + 4], "little")


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK32
