# SPDX-License-Identifier: Apache-2.0
"""Converts text to Spark's types, for values of which the meaning is certain.

Spark's parsers accept more (`+1`, ` 1.5`, `1d`, `2024-1-1`), and record what they cannot parse. So the characters of a
column must be those of the plain form, and Arrow's strict parser must take every value. Otherwise DataError is raised,
and Spark runs the query.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from volley.errors import DataError
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


def convert_text(values: pa.Array, data_type: DataType, pattern: str | None = None) -> pa.Array:
    """The values of a string array as another type. `pattern` is that of timestamps; None for Spark's default form."""
    if data_type == STRING:
        return values
    allowed = _DIGITS + b"-." if isinstance(data_type, DecimalType) else _CHARACTERS[data_type]
    # A NULL may have characters, too.
    if bytes_of(values).translate(None, allowed) and bytes_of(values.drop_null()).translate(None, allowed):
        raise DataError(f"a value is not a plain {data_type}.")
    try:
        if isinstance(data_type, DecimalType):
            return _decimal(values, data_type)
        return _CONVERTERS.get(data_type, _cast)(values, data_type, pattern)
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


def _cast(values: pa.Array, data_type: DataType, pattern: str | None) -> pa.Array:
    return pc.cast(values, to_arrow(data_type))


def _decimal(values: pa.Array, data_type: DecimalType) -> pa.Array:
    digits = data_type.precision - data_type.scale
    longest = pc.max(pc.binary_length(values)).as_py()
    if longest is not None and longest > digits:
        # Arrow overflows silently where a value has too many digits for the scale.
        fits = pc.match_substring_regex(values, rf"^-?0*[0-9]{{0,{digits}}}(\.[0-9]*)?$")
        if not pc.all(fits).as_py():
            raise DataError(f"a value has too many digits for {data_type}.")
    return pc.cast(values, to_arrow(data_type))


def _date(values: pa.Array, data_type: DataType, pattern: str | None) -> pa.Array:
    days = pc.cast(values, pa.date32())
    first = pc.min(days.cast(pa.int32())).as_py()
    if first is not None and first < _FIRST_DAY:
        raise DataError("a date is before the year 1.")
    return days


def _timestamp(values: pa.Array, data_type: DataType, pattern: str | None) -> pa.Array:
    lengths = pc.min_max(pc.binary_length(values))
    shortest, longest = lengths["min"].as_py(), lengths["max"].as_py()
    if shortest is not None:
        if shortest < _SECONDS_CHARACTERS or (pattern is not None and longest > _SECONDS_CHARACTERS):
            raise DataError("a timestamp is not complete, or not of the given format.")
        if (
            pattern is not None
            and not pc.all(pc.match_substring(values, "T" if "T" in pattern else " ")).as_py()
        ):
            raise DataError("a timestamp is not of the given format.")
    times = _instants(values) if data_type == TIMESTAMP and pattern is None else None
    if times is None:
        times = pc.cast(values, pa.timestamp("us"))
    first = pc.min(times.cast(pa.int64())).as_py()
    if first is not None and first < _FIRST_DAY * 86_400_000_000:
        raise DataError("a timestamp is before the year 1.")
    return times.cast(to_arrow(data_type))


def _instants(values: pa.Array) -> pa.Array | None:
    """Timestamps of which some have an offset. None if none has one. The session's zone is UTC."""
    zoned = pc.match_substring_regex(values, _OFFSET)
    if not pc.any(zoned).as_py():
        return None
    texts = pc.if_else(zoned, values, pc.binary_join_element_wise(values, "Z", ""))
    return pc.cast(texts, pa.timestamp("us", "UTC"))


_CONVERTERS: dict[DataType, Callable[[pa.Array, DataType, str | None], pa.Array]] = {
    DATE: _date,
    TIMESTAMP: _timestamp,
    TIMESTAMP_NTZ: _timestamp,
}
