# SPDX-License-Identifier: Apache-2.0
"""Dates and times formatted and parsed by constant patterns, and their casts to and from text."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.functions.jvm import else_spark
from volley.lower.functions.zones import INSTANT, LOCAL, digest, local_time, offsets_of
from volley.lower.registry import always, translates
from volley.lower.semantics import (
    Kernel,
    constant,
    kernel,
)
from volley.plan.expressions import Call
from volley.plan.types import STRING, TIMESTAMP, to_arrow
from volley.support.signatures import literal_value
from volley.times.patterns import FORMATTED, Part, parsed_pattern, read_pattern
from volley.times.texts import SECOND, read, read_cast, write
from volley.times.units import MICROS_A_SECOND
from volley.times.zones import zone_with


@translates("DateFormatClass", fails=always)
def date_format(call: Call, arguments: list[Expr]) -> Expr:
    return _written(local_time(call, arguments[0]), _formatted(call))


@translates("FromUnixTime", fails=always)
def from_unixtime(call: Call, arguments: list[Expr]) -> Expr:
    multiply = kernel("micros_of_seconds", _micros_of_seconds, INSTANT, pa.int64())
    return _written(local_time(call, multiply(arguments[0])), _formatted(call))


def _micros_of_seconds(seconds: pa.Array) -> pa.Array:
    # Beyond the years that can be written, before they overflow.
    limits = pa.scalar(-(2**40), pa.int64()), pa.scalar(2**40, pa.int64())
    bounded = pc.min_element_wise(
        pc.max_element_wise(seconds, limits[0], skip_nulls=False), limits[1], skip_nulls=False
    )
    return pc.multiply(bounded, MICROS_A_SECOND).cast(INSTANT)


def _formatted(call: Call) -> tuple[Part, ...]:
    parts = read_pattern(str(literal_value(call.arguments[1])), FORMATTED)
    assert parts is not None
    return parts


def _written(local: Expr, parts: tuple[Part, ...], *, with_fraction: bool = False) -> Expr:
    name = f"written_{with_fraction}_{parts}"
    return kernel(name, _write(parts, with_fraction), pa.string(), LOCAL)(local)


@cache
def _write(parts: tuple[Part, ...], with_fraction: bool) -> Kernel:
    def run(local: pa.Array) -> pa.Array:
        return write(_micros(local), _present(local), parts, with_fraction=with_fraction)

    return run


def time_as_text(call: Call, value: Expr) -> Expr:
    """The cast of a timestamp to text."""
    local = local_time(call, value) if call.arguments[0].type == TIMESTAMP else value
    return _written(local, SECOND, with_fraction=True)


# ----------------------------------------------------------------------------------------------- parsing


@translates("GetTimestamp", fails=always)
def get_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    return _else_spark(call, arguments, _parsed(call, arguments[0]))


@translates("UnixTimestamp", "ToUnixTimestamp", fails=always)
def unix_timestamp(call: Call, arguments: list[Expr]) -> Expr:
    is_text = call.arguments[0].type == STRING
    instant = _parsed(call, arguments[0]) if is_text else arguments[0]
    # Towards zero, unlike unix_seconds.
    seconds = instant.cast(pa.int64()) / constant(MICROS_A_SECOND, pa.int64())
    return _else_spark(call, arguments, seconds) if is_text else seconds


def text_as_time(call: Call, arguments: list[Expr]) -> Expr:
    """The cast of a text to a timestamp."""
    offsets, target = offsets_of(call), to_arrow(call.type)
    name = f"text_as_time_{'' if offsets is None else digest(offsets)}_{target}"
    value = kernel(name, _cast(offsets, target), target, pa.string())(arguments[0])
    return _else_spark(call, arguments, value)


def _else_spark(call: Call, arguments: list[Expr], value: Expr) -> Expr:
    """The value, where it is not NULL; Spark's code for the texts that were not read."""
    return else_spark(call, arguments, value.is_not_null() | arguments[0].is_null(), value)


def _parsed(call: Call, text: Expr) -> Expr:
    """The instant that a text says in the form of the pattern, NULL for other texts."""
    parts = parsed_pattern(str(literal_value(call.arguments[1])))
    assert parts is not None
    offsets = offsets_of(call)
    name = f"parsed_{'' if offsets is None else digest(offsets)}_{parts}"
    return kernel(name, _parse(parts, offsets), INSTANT, pa.string())(text)


@cache
def _parse(parts: tuple[Part, ...], offsets: bytes | None) -> Kernel:
    def run(texts: pa.Array) -> pa.Array:
        local, plain = read(texts, parts)
        return _instants(local, plain & _present(texts), offsets).cast(INSTANT)

    return run


@cache
def _cast(offsets: bytes | None, target: pa.DataType) -> Kernel:
    def run(texts: pa.Array) -> pa.Array:
        local, plain, zulu = read_cast(texts)
        plain = plain & _present(texts)
        if target == LOCAL:
            # Spark ignores the zone there, or refuses it.
            return _instants(local, plain & ~zulu, None).cast(target)
        found = local if offsets is None else np.where(zulu, local, zone_with(offsets).instant(local))
        return _instants(found, plain, None).cast(target)

    return run


def _instants(local: Any, plain: Any, offsets: bytes | None) -> pa.Array:
    found = local if offsets is None else zone_with(offsets).instant(local)
    return pa.array(found, pa.int64(), mask=None if plain.all() else ~plain)


def _micros(values: pa.Array) -> Any:
    return values.cast(pa.int64()).fill_null(0).to_numpy()


def _present(values: pa.Array) -> Any:
    return values.is_valid().to_numpy(zero_copy_only=False)
