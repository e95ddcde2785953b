# SPDX-License-Identifier: Apache-2.0
"""Instants and local times of the zone of a call, whose offsets the plan has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
from datafusion import Expr

from volley.lower.semantics import ExactnessError, Kernel, floor_divide, kernel
from volley.plan.expressions import Call
from volley.plan.zones import ZONE_OFFSETS
from volley.times.units import MICROS_A_DAY
from volley.times.zones import FARTHEST, Zone, zone_with

INSTANT, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


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
        if len(micros) and max(-int(micros.min()), int(micros.max())) > FARTHEST:
            raise ExactnessError("a time at the end of the calendar")
        mask = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        return pa.array(change(zone, micros, *parameters), pa.int64(), mask=mask).cast(target)

    return run
