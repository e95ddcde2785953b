# SPDX-License-Identifier: Apache-2.0
"""Strings. Positions and lengths count code points, as in Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.array_texts import concat_ws_of_arrays
from volley.lower.functions.arrays import concat_arrays, reverse_array
from volley.lower.functions.digests import base64
from volley.lower.functions.jvm import else_spark
from volley.lower.registry import always, translates
from volley.lower.semantics import Kernel, constant, kernel
from volley.plan.expressions import Call, Expression, Literal
from volley.plan.types import BINARY, STRING, ArrayType, to_arrow
from volley.support.patterns import like_pattern, translation
from volley.support.signatures import literal_value


@translates("Substring")
def substring(call: Call, arguments: list[Expr]) -> Expr:
    _, start, size = call.arguments
    if _at_least(start, 1) and _at_least(size, 0):
        # For positions inside the string this agrees with Spark, and is twice as fast.
        return f.substring(*arguments)
    return f.spark.substring(*arguments)


def _at_least(expression: Expression, minimum: int) -> bool:
    return (
        isinstance(expression, Literal) and isinstance(expression.value, int) and expression.value >= minimum
    )


@translates("Length")
def length(call: Call, arguments: list[Expr]) -> Expr:
    if call.arguments[0].type == BINARY:
        return octet_length(call, arguments)
    return f.character_length(arguments[0]).cast(pa.int32())


@translates("OctetLength")
def octet_length(call: Call, arguments: list[Expr]) -> Expr:
    if call.arguments[0].type == BINARY:
        return kernel("binary_length", pc.binary_length, pa.int32(), pa.binary())(arguments[0])
    return f.octet_length(arguments[0]).cast(pa.int32())


@translates("Upper")
def upper(call: Call, arguments: list[Expr]) -> Expr:
    return f.upper(arguments[0])


@translates("Lower", fails=always)
def lower(call: Call, arguments: list[Expr]) -> Expr:
    # Only the lower case of capital sigma depends on its neighbours, and ICU and Rust may disagree on where a word
    # ends.
    is_plain = ~f.contains(arguments[0], constant("Σ", pa.string()))
    return else_spark(call, arguments, is_plain, f.lower(arguments[0]))


@translates("Concat")
def concat(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, ArrayType):
        return concat_arrays(call, arguments)
    return f.spark.concat(*arguments)


@translates("ConcatWs")
def concat_ws(call: Call, arguments: list[Expr]) -> Expr:
    separator = call.arguments[0]
    assert isinstance(separator, Literal)
    assert isinstance(separator.value, str)
    if len(arguments) == 1:
        return constant("", pa.string())
    if any(part.type != STRING for part in call.arguments):
        return concat_ws_of_arrays(call, arguments)
    return f.concat_ws(separator.value, *arguments[1:])


@translates("StringTrim")
def trim(call: Call, arguments: list[Expr]) -> Expr:
    return f.btrim(*arguments)


@translates("StringTrimLeft")
def trim_left(call: Call, arguments: list[Expr]) -> Expr:
    return f.ltrim(*arguments)


@translates("StringTrimRight")
def trim_right(call: Call, arguments: list[Expr]) -> Expr:
    return f.rtrim(*arguments)


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
    pattern = like_pattern(str(literal_value(call.arguments[1])), str(call.option("escapeChar")))
    return f.spark.like(arguments[0], constant(pattern, pa.string()))


@translates("InitCap", fails=always)
def initcap(call: Call, arguments: list[Expr]) -> Expr:
    is_ascii = f.octet_length(arguments[0]) == f.character_length(arguments[0]).cast(pa.int32())
    return else_spark(
        call, arguments, is_ascii, kernel("initcap", _initcap, pa.string(), pa.string())(arguments[0])
    )


def _initcap(texts: pa.Array) -> pa.Array:
    """Words begin after a space, and only there."""
    lower = pc.ascii_lower(texts)
    offsets = np.frombuffer(lower.buffers()[1], np.int32)[lower.offset : lower.offset + len(lower) + 1]
    data = lower.buffers()[2]
    letters = np.frombuffer(data, np.uint8).copy() if data is not None else np.zeros(0, np.uint8)
    first = np.zeros(len(letters) + 1, np.bool_)
    first[offsets] = True
    first[1:] |= letters == ord(" ")
    letters[first[:-1] & (letters >= ord("a")) & (letters <= ord("z"))] -= 32
    buffers = [*lower.buffers()[:2], pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.string(), len(lower), buffers, offset=lower.offset)


@translates("Levenshtein")
def levenshtein(call: Call, arguments: list[Expr]) -> Expr:
    return f.levenshtein(*arguments).cast(pa.int32())


@translates("Overlay")
def overlay(call: Call, arguments: list[Expr]) -> Expr:
    """A negative length stands for that of the replacement."""
    text, replacement, start, length = arguments
    size = literal_value(call.arguments[3])
    assert isinstance(size, int)
    after = start + (length if size >= 0 else f.character_length(replacement).cast(pa.int32()))
    before = start - constant(1, pa.int32())
    one, most = constant(1, pa.int32()), constant(2**31 - 1, pa.int32())
    return f.spark.concat(
        f.spark.substring(text, one, before), replacement, f.spark.substring(text, after, most)
    )


@translates("StringSplitSQL")
def split_part(call: Call, arguments: list[Expr]) -> Expr:
    delimiter = str(literal_value(call.arguments[1]))
    wanted = to_arrow(call.type)
    return kernel(f"split_at_{delimiter}_{wanted}", _split(delimiter, wanted), wanted, pa.string())(
        arguments[0]
    )


@cache
def _split(delimiter: str, wanted: pa.DataType) -> Kernel:
    def run(texts: pa.Array) -> pa.Array:
        if delimiter:
            return pc.split_pattern(texts, delimiter).cast(wanted)
        whole = pa.array(range(len(texts) + 1), pa.int32())
        return pa.ListArray.from_arrays(whole, texts, type=wanted, mask=texts.is_null())

    return run


@translates("StringReplace")
def replace(call: Call, arguments: list[Expr]) -> Expr:
    text, search, replacement = arguments
    # For an empty search string Spark returns the input; DataFusion inserts the replacement between all characters.
    nothing_to_find = (search == constant("", pa.string())) & replacement.is_not_null()
    return f.when(nothing_to_find, text).otherwise(f.replace(text, search, replacement))


@translates("StringLPad")
def left_pad(call: Call, arguments: list[Expr]) -> Expr:
    return _pad(f.lpad, arguments)


@translates("StringRPad")
def right_pad(call: Call, arguments: list[Expr]) -> Expr:
    return _pad(f.rpad, arguments)


def _pad(function: Callable[[Expr, Expr, Expr], Expr], arguments: list[Expr]) -> Expr:
    text, width, pad = arguments
    # DataFusion panics on a negative width.
    none = constant(0, pa.int32())
    return function(text, f.when(width < none, none).otherwise(width), pad)


@translates("StringInstr")
def instr(call: Call, arguments: list[Expr]) -> Expr:
    return f.strpos(*arguments).cast(pa.int32())


@translates("StringLocate")
def locate(call: Call, arguments: list[Expr]) -> Expr:
    needle, text, _ = arguments
    return f.strpos(text, needle).cast(pa.int32())


@translates("Reverse")
def reverse(call: Call, arguments: list[Expr]) -> Expr:
    if isinstance(call.type, ArrayType):
        return reverse_array(call, arguments)
    return f.reverse(arguments[0])


@translates("StringRepeat")
def repeat(call: Call, arguments: list[Expr]) -> Expr:
    text, times = arguments
    return f.repeat(text, times.cast(pa.int64()))


@translates("Ascii")
def ascii_(call: Call, arguments: list[Expr]) -> Expr:
    return f.ascii(arguments[0]).cast(to_arrow(call.type))


@translates("Chr")
def chr_(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.char(arguments[0]).cast(pa.string())


@translates("SoundEx")
def soundex(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.soundex(arguments[0]).cast(pa.string())


@translates("StringSpace")
def space(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.space(arguments[0]).cast(pa.string())


@translates("BitLength")
def bit_length(call: Call, arguments: list[Expr]) -> Expr:
    return octet_length(call, arguments) * constant(8, pa.int32())


@translates("FindInSet")
def find_in_set(call: Call, arguments: list[Expr]) -> Expr:
    return f.find_in_set(*arguments).cast(pa.int32())


@translates("SubstringIndex")
def substring_index(call: Call, arguments: list[Expr]) -> Expr:
    text, delimiter, count = arguments
    return f.substring_index(text, delimiter, count.cast(pa.int64())).cast(pa.string())


@translates("StringTranslate")
def translate(call: Call, arguments: list[Expr]) -> Expr:
    """One character after the other: the rule lets none of them be put in that is replaced later."""
    _, matching, replacing = call.arguments
    assert isinstance(matching, Literal)
    assert isinstance(replacing, Literal)
    text = arguments[0]
    for old, new in translation(str(matching.value), str(replacing.value)).items():
        text = f.replace(text, constant(old, pa.string()), constant(new, pa.string()))
    return text.cast(pa.string())


@translates("StaticInvoke")
def static_invoke(call: Call, arguments: list[Expr]) -> Expr:
    return (
        base64(call, arguments) if call.option("functionName") == "encode" else _read_side_padding(arguments)
    )


def _read_side_padding(arguments: list[Expr]) -> Expr:
    """Pads CHAR(n) columns with spaces as they are read; longer values are unchanged."""
    text, size = arguments
    padded = f.rpad(text, size, constant(" ", pa.string()))
    return f.when(f.character_length(text) < size, padded).otherwise(text)
