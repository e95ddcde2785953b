# SPDX-License-Identifier: Apache-2.0
"""Time zones of a plan: the offsets that Java has for them travel with the calls that need them.

Workers may have other rules for a zone, and those of C and Rust libraries differ for old and far dates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from volley.plan.expressions import Call, Literal
from volley.plan.types import NULL, TIMESTAMP, TIMESTAMP_NTZ

ZONE_OFFSETS = "zoneOffsets"
"""The option of a call that has the `Offsets` of its zone, encoded."""

UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "Zulu", "Universal", "UCT"})


def zone_of(call: Call) -> str | None:
    """The zone on which the value of a call depends; None if it depends on none, or on one that is not known yet."""
    if call.function in _OF_ARGUMENTS:
        constant = call.arguments[1]
        return constant.value if isinstance(constant, Literal) and isinstance(constant.value, str) else None
    if call.function == "Cast":
        source, target = call.arguments[0].type, call.type
        # Dates and local times have no zone, but text is parsed to instants.
        if TIMESTAMP not in (source, target) or source in (target, NULL):
            return None
    elif call.function not in _OF_SESSION:
        return None
    if any(argument.type == TIMESTAMP_NTZ for argument in call.arguments) and call.function != "Cast":
        return "UTC"
    zone = call.option("timeZoneId")
    return None if zone is None else str(zone).removeprefix("Some(").removesuffix(")")


_OF_ARGUMENTS = frozenset({"FromUTCTimestamp", "ToUTCTimestamp"})
_OF_SESSION = frozenset(
    {
        "Hour",
        "Minute",
        "Second",
        "SecondWithFraction",
        "TruncTimestamp",
        "DateFormatClass",
        "FromUnixTime",
        "UnixTimestamp",
        "ToUnixTimestamp",
        "GetTimestamp",
        "SubtractTimestamps",
        "TimestampAddInterval",
    }
)


def with_offsets(call: Call, find: Callable[[str], bytes | None]) -> Call:
    """The call, with the offsets of its zone if that is not UTC.

    `find` gives None for an unknown zone: Spark raises its error only for rows that need the zone.
    """
    zone = zone_of(call)
    offsets = None if zone is None or zone in UTC else find(zone)
    return call if offsets is None else replace(call, options=(*call.options, (ZONE_OFFSETS, offsets)))
