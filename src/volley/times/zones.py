# SPDX-License-Identifier: Apache-2.0
"""Local times of a zone and the instants that they stand for, by the offsets that Java has for it.

As in Java, a local time that a clock skipped is moved by the length of the gap, and one that it showed twice is the
earlier of the two.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from volley.times.units import MICROS_A_DAY, MICROS_A_SECOND

FARTHEST = 2**63 - 1 - 2 * MICROS_A_DAY
"""Times beyond it, in microseconds, may overflow in another zone."""


@dataclass(frozen=True)
class Offsets:
    """How far a zone is ahead of UTC, in seconds.

    `first` holds before the first of `transitions`, which are seconds since the epoch with the offset from then on.
    After `period` seconds from `start` all that follows it begins again; nothing does if `period` is 0.
    """

    first: int
    period: int
    start: int
    transitions: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def decode_offsets(content: bytes) -> Offsets:
    (first, period, start), transitions = json.loads(zlib.decompress(content))
    return Offsets(first, period, start, tuple((second, offset) for second, offset in transitions))


class Zone:
    """The offsets of a zone, in microseconds."""

    def __init__(self, found: Offsets) -> None:
        offsets = np.array([found.first, *(offset for _, offset in found.transitions)], np.int64)
        self._offsets = offsets * MICROS_A_SECOND
        self._at = np.array([second for second, _ in found.transitions], np.int64) * MICROS_A_SECOND
        before, after = self._offsets[:-1], self._offsets[1:]
        # Where the local times with the offset before a transition end: a gap, or what is shown twice, has that.
        self._ends = self._at + np.maximum(before, after)
        self._gaps = self._at + before
        self._start = found.start * MICROS_A_SECOND
        self._period = found.period * MICROS_A_SECOND

    def local(self, instants: Any) -> Any:
        return instants + self._offset(instants, self._at)

    def instant(self, locals_: Any) -> Any:
        return locals_ - self._offset(locals_, self._ends)

    def start_of_day(self, midnights: Any) -> Any:
        found = self.instant(midnights)
        if not len(self._at):
            return found
        # Midnight may be skipped: then the day begins at the end of the gap.
        usual = self._reduced(midnights)
        place = np.minimum(np.searchsorted(self._ends, usual, side="right"), len(self._at) - 1)
        skipped = (self._gaps[place] <= usual) & (usual < self._ends[place])
        skipped &= self._offsets[place + 1] > self._offsets[place]
        return np.where(skipped, self._at[place] + (midnights - usual), found)

    def truncated(self, instants: Any, size: int) -> Any:
        offsets = self._offset(instants, self._at)
        local = instants + offsets
        return self._with_offset(local - local % size, offsets)

    def moved(self, instants: Any, distance: int) -> Any:
        offsets = self._offset(instants, self._at)
        if abs(distance) > FARTHEST:
            raise OverflowError("an interval longer than the calendar")
        local = instants + offsets + distance
        if np.any((local < instants) != (offsets + distance < 0)):
            raise OverflowError("a time at the end of the calendar")
        return self._with_offset(local, offsets)

    def _with_offset(self, locals_: Any, offsets: Any) -> Any:
        """The instants of local times. An hour that is shown twice has this offset, if it can."""
        same = locals_ - offsets
        return np.where(self._offset(same, self._at) == offsets, same, self.instant(locals_))

    def _offset(self, times: Any, ends: Any) -> Any:
        if not len(ends):
            return self._offsets[0]
        reduced = self._reduced(times)
        if len(reduced):
            first, last = np.searchsorted(ends, (reduced.min(), reduced.max()), side="right")
            if first == last:
                return self._offsets[first]
        return self._offsets[np.searchsorted(ends, reduced, side="right")]

    def _reduced(self, times: Any) -> Any:
        """The times, with what is beyond the listed transitions moved back by whole periods."""
        if not self._period or not len(times) or times.max() < self._start + self._period:
            return times
        again = self._start + (times - self._start) % self._period
        return np.where(times < self._start, times, again)


@lru_cache(maxsize=256)
def zone_with(content: bytes) -> Zone:
    """The zone with these encoded offsets."""
    return Zone(decode_offsets(content))
