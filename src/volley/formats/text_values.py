# SPDX-License-Identifier: Apache-2.0
"""Converts text to Spark's types, for values of which the meaning is certain.

Spark's parsers accept more (`+1`, ` 1.5`, `1d`, `2024-1-1`), and record what they cannot parse. So the characters of a
column must be those of the plain form, and Arrow's strict parser must take every value. Otherwise DataError is raised,
and Spark runs the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import DataError
from volley.plan.read_rules import ZONE_OFFSETS
from volley.plan.types import (
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    to_arrow,
)
from volley.times.patterns import Part, parsed_pattern
from volley.times.texts import read
from volley.times.units import MICROS_A_DAY
from volley.times.zones import Zone, zone_with

_DIGITS = b"0123456789"
_CHARACTERS: dict[DataType, bytes] = {
    BOOLEAN: b"aeflrstuAEFLRSTU",
    BYTE: _DIGITS + b"-",
    SHORT: _DIGITS + b"-",
    INTEGER: _DIGITS + b"-",
    LONG: _DIGITS + b"-",
    FLOAT: _DIGITS + b"-+.eE",
    DOUBLE: _DIGITS + b"-+.eE",
    DATE: _DIGITS + b"-",
    TIMESTAMP: _DIGITS + b"-+:. TZ",
    TIMESTAMP_NTZ: _DIGITS + b"-:. T",
}
_FIRST_DAY = -719_162  # 0001-01-01
_SECONDS_CHARACTERS = 19  # 2024-02-29 12:00:00
# Spark writes instants with an offset. Its parser takes other forms of it, and offsets up to 18 hours, too.
_OFFSET = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"


@dataclass(frozen=True)
class TimeForms:
    """How files write dates and times: by patterns of their own, or in Spark's default form; timestamps in `zone`."""

    patterns: Mapping[DataType, tuple[Part, ...]]
    zone: Zone | None = None
    """None: UTC."""

    @staticmethod
    def of(options: Mapping[str, str]) -> TimeForms:
        """Those of a scan with these read options."""
        given = {kind: parsed_pattern(options[key]) for kind, key in _PATTERNS.items() if key in options}
        offsets = options.get(ZONE_OFFSETS)
        return TimeForms(
            {kind: parts for kind, parts in given.items() if parts is not None},
            None if offsets is None else zone_with(bytes.fromhex(offsets)),
        )


_PATTERNS: dict[DataType, str] = {
    DATE: "dateformat",
    TIMESTAMP: "timestampformat",
    TIMESTAMP_NTZ: "timestampntzformat",
}
_DEFAULT_FORMS = TimeForms({})


def convert_text(values: pa.Array, data_type: DataType, forms: TimeForms = _DEFAULT_FORMS) -> pa.Array:
    """The values of a string array as another type."""
    if data_type == STRING:
        return values
    parts = forms.patterns.get(data_type)
    if parts is not None:
        return _by_pattern(values, data_type, parts, forms.zone)
    allowed = _DIGITS + b"-." if isinstance(data_type, DecimalType) else _CHARACTERS[data_type]
    # A NULL may have characters, too.
    if bytes_of(values).translate(None, allowed) and bytes_of(values.drop_null()).translate(None, allowed):
        raise DataError(f"a value is not a plain {data_type}.")
    try:
        match data_type:
            case DecimalType():
                return _decimal(values, data_type)
            case _ if data_type == DATE:
                return _date(values)
            case _ if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
                return _timestamp(values, data_type, forms.zone)
            case _:
                return pc.cast(values, to_arrow(data_type))
    except pa.ArrowException as error:
        raise DataError(f"a value is not a plain {data_type}: {error}") from error


def bytes_of(values: pa.Array) -> bytes:
    """The characters of all values, one after the other."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return b""
    first, last = pa.Array.from_buffers(
        pa.int32(), len(values) + 1, [None, offsets], offset=values.offset
    ).take(pa.array([0, len(values)]))
    found: bytes = data[first.as_py() : last.as_py()].to_pybytes()
    return found


def _decimal(values: pa.Array, data_type: DecimalType) -> pa.Array:
    digits = data_type.precision - data_type.scale
    longest = pc.max(pc.binary_length(values)).as_py()
    if longest is not None and longest > digits:
        # Arrow overflows silently where a value has too many digits for the scale.
        fits = pc.match_substring_regex(values, rf"^-?0*[0-9]{{0,{digits}}}(\.[0-9]*)?$")
        if not pc.all(fits).as_py():
            raise DataError(f"a value has too many digits for {data_type}.")
    return pc.cast(values, to_arrow(data_type))


def _by_pattern(
    values: pa.Array, data_type: DataType, parts: tuple[Part, ...], zone: Zone | None
) -> pa.Array:
    local, plain = read(values, parts)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    if not np.all(plain | missing):
        raise DataError(f"a {data_type} does not have the full width of its pattern.")
    if data_type == DATE:
        return pa.array((local // MICROS_A_DAY).astype(np.int32), mask=missing).cast(pa.date32())
    times = pa.array(local, pa.int64(), mask=missing)
    return _instants(times, zone) if data_type == TIMESTAMP else times.cast(to_arrow(data_type))


def _date(values: pa.Array) -> pa.Array:
    days = pc.cast(values, pa.date32())
    first = pc.min(days.cast(pa.int32())).as_py()
    if first is not None and first < _FIRST_DAY:
        raise DataError("a date is before the year 1.")
    return days


def _timestamp(values: pa.Array, data_type: DataType, zone: Zone | None) -> pa.Array:
    shortest = pc.min(pc.binary_length(values)).as_py()
    if shortest is not None and shortest < _SECONDS_CHARACTERS:
        raise DataError("a timestamp is not complete.")
    with_offset = pc.match_substring_regex(values, _OFFSET) if data_type == TIMESTAMP else None
    if with_offset is None or not pc.any(with_offset).as_py():
        local = _micros(values)
        return _instants(local, zone) if data_type == TIMESTAMP else local.cast(to_arrow(data_type))
    moved = pc.cast(pc.if_else(with_offset, values, None), pa.timestamp("us", "UTC"))
    _check_year(moved.cast(pa.int64()))
    return pc.coalesce(moved, _instants(_micros(pc.if_else(with_offset, None, values)), zone))


def _micros(values: pa.Array) -> pa.Array:
    """The microseconds that clocks show, from the epoch on."""
    micros = pc.cast(values, pa.timestamp("us")).cast(pa.int64())
    _check_year(micros)
    return micros


def _check_year(micros: pa.Array) -> None:
    first = pc.min(micros).as_py()
    if first is not None and first < _FIRST_DAY * MICROS_A_DAY:
        raise DataError("a timestamp is before the year 1.")


def _instants(local: pa.Array, zone: Zone | None) -> pa.Array:
    """The instants at which clocks of the zone show these microseconds."""
    if zone is not None:
        missing = local.is_null().to_numpy(zero_copy_only=False)
        instants = zone.instant(local.fill_null(0).to_numpy(zero_copy_only=False))
        local = pa.array(instants, pa.int64(), mask=missing)
    return local.cast(to_arrow(TIMESTAMP))
