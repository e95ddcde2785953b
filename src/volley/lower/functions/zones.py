# SPDX-License-Identifier: Apache-2.0
"""Local times of a zone and the instants that they stand for, by the offsets that the plan has.

As in Java, a local time that a clock skipped is moved by the length of the gap, and one that it showed twice is the
earlier of the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from datafusion import Expr

from volley.lower.semantics import (
    MICROS_A_DAY,
    MICROS_A_SECOND,
    ExactnessError,
    Kernel,
    floor_divide,
    kernel,
)
from volley.plan.expressions import Call
from volley.plan.zones import ZONE_OFFSETS, decode_offsets

INSTANT, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_FARTHEST = 2**63 - 1 - 2 * MICROS_A_DAY


def local_time(call: Call, instant: Expr) -> Expr:
    """What a clock of the call's zone shows at this instant."""
    return _through(call, Zone.local, instant, INSTANT, LOCAL)


def local_date(call: Call, instant: Expr) -> Expr:
    """The day at this instant in the call's zone."""
    micros = local_time(call, instant).cast(pa.int64())
    return floor_divide(micros, MICROS_A_DAY).cast(pa.int32()).cast(pa.date32())


def instant_of(call: Call, local: Expr) -> Expr:
    """The instant at which a clock of the call's zone shows this."""
    return _through(call, Zone.instant, local, LOCAL, INSTANT)


def start_of_day(call: Call, date: Expr) -> Expr:
    """The first instant of a day in the call's zone. Fails for days beyond the range of timestamps."""
    return _through(call, Zone.start_of_day, date.cast(LOCAL), LOCAL, INSTANT)


def truncated(call: Call, instant: Expr, size: int) -> Expr:
    """The instant, with what a clock of the call's zone shows truncated to a multiple of `size` microseconds."""
    return _through(call, Zone.truncated, instant, INSTANT, INSTANT, size)


def moved(call: Call, instant: Expr, distance: int) -> Expr:
    """The instant, with what a clock of the call's zone shows moved by whole days, in microseconds."""
    return _through(call, Zone.moved, instant, INSTANT, INSTANT, distance)


def has_zone(call: Call) -> bool:
    """Whether the call's zone is another than UTC."""
    return offsets_of(call) is not None


def offsets_of(call: Call) -> bytes | None:
    """The offsets of the call's zone; None for UTC."""
    content = call.option(ZONE_OFFSETS)
    return content if isinstance(content, bytes) else None


def _through(
    call: Call,
    change: Callable[..., Any],
    value: Expr,
    source: pa.DataType,
    target: pa.DataType,
    *parameters: int,
) -> Expr:
    """A method of `Zone` over a column. Nothing changes in UTC."""
    content = offsets_of(call)
    if content is None:
        return value.cast(pa.int64()).cast(target)
    name = f"{change.__name__}_{'_'.join(map(str, parameters))}_{digest(content)}"
    return kernel(name, _run(change, content, target, parameters), target, source)(value)


def digest(content: bytes) -> str:
    """A name for the offsets."""
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def _run(
    change: Callable[..., Any], content: bytes, target: pa.DataType, parameters: tuple[int, ...]
) -> Kernel:
    zone = zone_with(content)

    def run(values: pa.Array) -> pa.Array:
        micros = values.cast(pa.int64()).fill_null(0).to_numpy()
        if len(micros) and max(-int(micros.min()), int(micros.max())) > _FARTHEST:
            raise ExactnessError("a time at the end of the calendar")
        mask = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        return pa.array(change(zone, micros, *parameters), pa.int64(), mask=mask).cast(target)

    return run


class Zone:
    """The offsets of a zone, in microseconds."""

    def __init__(self, content: bytes) -> None:
        found = decode_offsets(content)
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
        if abs(distance) > _FARTHEST:
            raise ExactnessError("an interval longer than the calendar")
        local = instants + offsets + distance
        if np.any((local < instants) != (offsets + distance < 0)):
            raise ExactnessError("a time at the end of the calendar")
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
    return Zone(content)
