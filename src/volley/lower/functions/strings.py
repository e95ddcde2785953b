"""Strings. Positions and lengths count code points, as in Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.patterns import rust_regex
from volley.lower.registry import always, translates
from volley.lower.semantics import ExactnessError, constant, kernel
from volley.plan.expressions import Call, Literal
from volley.plan.types import BINARY, to_arrow


@translates("Substring")
def substring(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.substring(*arguments)


@translates("Length")
def length(call: Call, arguments: list[Expr]) -> Expr:
    function = f.octet_length if call.arguments[0].type == BINARY else f.character_length
    return function(arguments[0]).cast(pa.int32())


@translates("OctetLength")
def octet_length(call: Call, arguments: list[Expr]) -> Expr:
    return f.octet_length(arguments[0]).cast(pa.int32())


@translates("Upper", fails=always)
def upper(call: Call, arguments: list[Expr]) -> Expr:
    return kernel("ascii_upper", _ascii_upper, pa.string(), pa.string())(arguments[0])


@translates("Lower", fails=always)
def lower(call: Call, arguments: list[Expr]) -> Expr:
    return kernel("ascii_lower", _ascii_lower, pa.string(), pa.string())(arguments[0])


def _ascii_upper(values: pa.Array) -> pa.Array:
    return _only_ascii(values, pc.ascii_upper)


def _ascii_lower(values: pa.Array) -> pa.Array:
    return _only_ascii(values, pc.ascii_lower)


def _only_ascii(values: pa.Array, function: Callable[[pa.Array], pa.Array]) -> pa.Array:
    # Beyond ASCII the answer depends on the Unicode version of Spark's case tables.
    if not pc.all(pc.string_is_ascii(values)).as_py():
        raise ExactnessError("text beyond ASCII, whose case only Spark can change")
    return function(values)


@translates("Concat")
def concat(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.concat(*arguments)


@translates("ConcatWs")
def concat_ws(call: Call, arguments: list[Expr]) -> Expr:
    separator = call.arguments[0]
    assert isinstance(separator, Literal)
    assert isinstance(separator.value, str)
    return f.concat_ws(separator.value, *arguments[1:])


@translates("StringTrim")
def trim(call: Call, arguments: list[Expr]) -> Expr:
    return f.btrim(arguments[0])


@translates("StringTrimLeft")
def trim_left(call: Call, arguments: list[Expr]) -> Expr:
    return f.ltrim(arguments[0])


@translates("StringTrimRight")
def trim_right(call: Call, arguments: list[Expr]) -> Expr:
    return f.rtrim(arguments[0])


@translates("StartsWith")
def starts_with(call: Call, arguments: list[Expr]) -> Expr:
    return f.starts_with(*arguments)


@translates("EndsWith")
def ends_with(call: Call, arguments: list[Expr]) -> Expr:
    return f.ends_with(*arguments)


@translates("Contains")
def contains(call: Call, arguments: list[Expr]) -> Expr:
    return f.contains(*arguments)


@translates("Like")
def like(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.like(*arguments)


@translates("RLike")
def rlike(call: Call, arguments: list[Expr]) -> Expr:
    pattern = call.arguments[1]
    assert isinstance(pattern, Literal)
    assert isinstance(pattern.value, str)
    return f.regexp_like(arguments[0], constant(rust_regex(pattern.value), pa.string()))


@translates("StringReplace")
def replace(call: Call, arguments: list[Expr]) -> Expr:
    text, search, replacement = arguments
    # Spark leaves the text alone when there is nothing to search for; DataFusion puts in between all characters.
    return f.when(search == constant("", pa.string()), text).otherwise(f.replace(text, search, replacement))


@translates("StringLPad")
def left_pad(call: Call, arguments: list[Expr]) -> Expr:
    return f.lpad(*arguments)


@translates("StringRPad")
def right_pad(call: Call, arguments: list[Expr]) -> Expr:
    return f.rpad(*arguments)


@translates("StringInstr")
def instr(call: Call, arguments: list[Expr]) -> Expr:
    return f.strpos(*arguments).cast(pa.int32())


@translates("StringLocate")
def locate(call: Call, arguments: list[Expr]) -> Expr:
    needle, text, _ = arguments
    return f.strpos(text, needle).cast(pa.int32())


@translates("Reverse")
def reverse(call: Call, arguments: list[Expr]) -> Expr:
    return f.reverse(arguments[0])


@translates("StringRepeat")
def repeat(call: Call, arguments: list[Expr]) -> Expr:
    text, times = arguments
    return f.repeat(text, times.cast(pa.int64()))


@translates("Ascii")
def ascii_(call: Call, arguments: list[Expr]) -> Expr:
    return f.ascii(arguments[0]).cast(to_arrow(call.type))


@translates("StaticInvoke")
def read_side_padding(call: Call, arguments: list[Expr]) -> Expr:
    """CHAR(n) columns, padded with blanks as they are read; longer values stay as they are."""
    text, size = arguments
    padded = f.rpad(text, size, constant(" ", pa.string()))
    return f.when(f.character_length(text) < size, padded).otherwise(text)
