# SPDX-License-Identifier: Apache-2.0
"""Which casts give exactly Spark's result."""

from __future__ import annotations

from volley.plan.expressions import Call, EvalMode
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FRACTIONAL,
    LONG,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    is_number,
)
from volley.plan.zones import UTC, ZONE_OFFSETS, zone_of
from volley.support.reasons import Reason, Unsupported

# Outside ANSI mode a decimal with a larger scale may print in scientific notation (1E-7).
_PLAIN_SCALE = 6


def check_zone(call: Call) -> Unsupported | None:
    """The zone on which the call depends must be a constant, whose offsets the plan has."""
    zone = zone_of(call)
    if zone in UTC or call.option(ZONE_OFFSETS) is not None:
        return None
    return Unsupported(Reason.TIME_ZONE, call.function, str(zone))


def check_cast(call: Call) -> Unsupported | None:
    source, target = call.arguments[0].type, call.type
    if source in (target, NULL):
        return None
    if call.mode is None:
        return Unsupported(Reason.CAPTURE, call.function, "unknown evaluation mode")
    if {source, target} in ({DATE, TIMESTAMP}, {TIMESTAMP, TIMESTAMP_NTZ}, {TIMESTAMP, STRING}):
        return check_zone(call)
    if _is_exact(source, target, call.mode):
        return None
    return Unsupported(Reason.CAST, call.function, f"{source} to {target}")


def _is_exact(source: DataType, target: DataType, mode: EvalMode) -> bool:
    if is_number(source) or source == BOOLEAN:
        if target == STRING:
            return _prints_plainly(source, mode)
        return is_number(target) or target == BOOLEAN
    if source == STRING:
        return is_number(target) or target in (BOOLEAN, DATE, BINARY, TIMESTAMP_NTZ)
    if source == TIMESTAMP_NTZ and target == STRING:
        return True
    if source == DATE:
        return target in (STRING, TIMESTAMP_NTZ)
    return (source, target) in ((TIMESTAMP_NTZ, DATE), (TIMESTAMP, LONG))


def _prints_plainly(source: DataType, mode: EvalMode) -> bool:
    if isinstance(source, DecimalType):
        return mode is EvalMode.ANSI or source.scale <= _PLAIN_SCALE
    return source not in FRACTIONAL
