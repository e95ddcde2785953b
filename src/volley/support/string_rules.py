# SPDX-License-Identifier: Apache-2.0
"""The rows of the support table for strings, digests and encodings."""

from __future__ import annotations

from volley.plan.expressions import Call
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    ArrayType,
    DataType,
)
from volley.spark_versions.registry import current
from volley.support.nested_rules import element_type
from volley.support.patterns import like_pattern, overlaps_itself
from volley.support.reasons import Reason, Unsupported
from volley.support.regexes import Regex, read_regex, read_replacement
from volley.support.signatures import (
    ExpressionRule,
    all_of,
    arguments,
    array,
    constant_text,
    integral,
    literal_value,
    one_of,
    option_in,
    refuse,
    rules,
    same,
)

_boolean = one_of(BOOLEAN)
_string = one_of(STRING)
_int = one_of(INTEGER)


def _like(call: Call) -> Unsupported | None:
    pattern, escape = literal_value(call.arguments[1]), call.option("escapeChar")
    if not isinstance(pattern, str) or not isinstance(escape, str) or like_pattern(pattern, escape) is None:
        return refuse(call, "a pattern that is not a constant, or not valid", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string)(call)


def _regex(call: Call) -> Regex | None:
    pattern = literal_value(call.arguments[1])
    return read_regex(pattern) if isinstance(pattern, str) else None


def _unportable(call: Call) -> Unsupported:
    return refuse(call, "a regular expression that Java and Rust may read differently", Reason.ARGUMENT_VALUE)


def _rlike(call: Call) -> Unsupported | None:
    return arguments(_string, _string)(call) if _regex(call) else _unportable(call)


def _regexp_replace(call: Call) -> Unsupported | None:
    regex, replacement = _regex(call), literal_value(call.arguments[2])
    if regex is None or not regex.is_replaceable:
        return _unportable(call)
    parts = read_replacement(replacement, regex.groups) if isinstance(replacement, str) else None
    if parts is None or not regex.repeated.isdisjoint(parts) or any("\\" in str(part) for part in parts):
        return refuse(call, "a replacement that Java and Rust may read differently", Reason.ARGUMENT_VALUE)
    if literal_value(call.arguments[3]) != 1:
        return refuse(call, "a position other than the constant 1", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _string, _int)(call)


def _regexp_extract(call: Call) -> Unsupported | None:
    regex, group = _regex(call), literal_value(call.arguments[2])
    if regex is None or regex.loops_on_nothing:
        return _unportable(call)
    if not isinstance(group, int) or not 0 <= group <= regex.groups or group in regex.repeated:
        return refuse(call, "a group that is not a constant, or is repeated", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


def _split(call: Call) -> Unsupported | None:
    regex = _regex(call)
    if regex is None or not regex.is_replaceable or regex.only_ascii or regex.has_start or regex.has_end:
        return _unportable(call)
    if not isinstance(literal_value(call.arguments[2]), int):
        return refuse(call, "a limit that is not a constant", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


def is_guarded_regex(call: Call) -> bool:
    """Whether the pattern means the same in Java and Rust on some texts only."""
    regex = _regex(call)
    return regex is not None and (regex.only_ascii or regex.has_end)


def _concat(call: Call) -> Unsupported | None:
    if not isinstance(call.type, ArrayType):
        return same(_string)(call)
    if any(element_type(call, position) != call.type.element for position in range(len(call.arguments))):
        return refuse(call, "arrays of different types")
    return None


def _concat_ws(call: Call) -> Unsupported | None:
    if not isinstance(literal_value(call.arguments[0]), str):
        return refuse(call, "a separator that is not a constant", Reason.ARGUMENT_VALUE)
    return same(_is_text_or_texts, alike=False)(call)


def _is_text_or_texts(data_type: DataType) -> bool:
    return data_type == STRING or (isinstance(data_type, ArrayType) and data_type.element == STRING)


def _overlay(call: Call) -> Unsupported | None:
    start, size = map(literal_value, call.arguments[2:])
    if not isinstance(start, int) or not isinstance(size, int) or start < 1 or start + abs(size) >= 2**31:
        return refuse(call, "a start and a length that are not constants", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int, _int)(call)


def _split_sql(call: Call) -> Unsupported | None:
    return arguments(_string, _string)(call) if literal_value(call.arguments[1]) else constant_text(1)(call)


def _locate(call: Call) -> Unsupported | None:
    if literal_value(call.arguments[2]) != 1:
        return refuse(call, "a start other than the constant 1", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


def _is_base64(call: Call) -> bool:
    if call.option("staticObject") != "org.apache.spark.sql.catalyst.expressions.Base64":
        return False
    return call.option("functionName") == "encode" and isinstance(literal_value(call.arguments[1]), bool)


def _translate(call: Call) -> Unsupported | None:
    matching, replacing = map(literal_value, call.arguments[1:])
    if not isinstance(matching, str) or not isinstance(replacing, str):
        return refuse(call, "characters that are not constants", Reason.ARGUMENT_VALUE)
    if set(matching) & set(replacing) or len(matching) > 64 or "\0" in matching + replacing:
        return refuse(call, "characters that are replaced and put in", Reason.ARGUMENT_VALUE)
    return same(_string)(call)


def _substring_index(call: Call) -> Unsupported | None:
    delimiter = literal_value(call.arguments[1])
    if not isinstance(delimiter, str) or not delimiter or overlaps_itself(delimiter):
        return refuse(call, "a delimiter that is not a plain constant", Reason.ARGUMENT_VALUE)
    count = literal_value(call.arguments[2])
    if not current().substring_index_takes_any_count and (count is None or count == _SMALLEST_INTEGER):
        return refuse(call, "a count that is not a constant, which may be too small", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


_SMALLEST_INTEGER = -(2**31)


def _hashed(call: Call) -> Unsupported | None:
    if call.option("seed") != 42:
        return refuse(call, f"seed {call.option('seed')!r}", Reason.ARGUMENT_VALUE)
    return same(one_of(BOOLEAN, BYTE, SHORT, INTEGER, LONG, STRING, BINARY, DATE, TIMESTAMP), alike=False)(
        call
    )


def _static_invoke(call: Call) -> Unsupported | None:
    if _is_base64(call):
        return arguments(one_of(BINARY), _boolean)(call)
    if call.option("functionName") != "readSidePadding":
        return Unsupported(Reason.EXPRESSION, f"StaticInvoke {call.option('functionName')!s}")
    return arguments(_string, _int)(call)


STRINGS: dict[str, ExpressionRule] = {
    **rules(
        "Strings",
        {
            "Substring": (arguments(_string, _int, _int), ""),
            "Length": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "OctetLength": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "Upper": (arguments(_string), ""),
            "Lower": (arguments(_string), "Spark's code computes texts with a capital sigma."),
            "Concat": (_concat, "Strings and arrays."),
            "ConcatWs": (_concat_ws, "Strings and arrays of them, with a constant separator."),
            "StringTrim": (same(_string), "Spaces, or the given characters."),
            "StringTrimLeft": (same(_string), "Spaces, or the given characters."),
            "StringTrimRight": (same(_string), "Spaces, or the given characters."),
            "StartsWith": (arguments(_string, _string), ""),
            "EndsWith": (arguments(_string, _string), ""),
            "Contains": (arguments(_string, _string), ""),
            "Like": (_like, "A constant pattern."),
            "RLike": (_rlike, "A constant pattern in the subset that Java and Rust share."),
            "RegExpReplace": (
                _regexp_replace,
                "A constant pattern in the subset that Java and Rust share, which does not match the empty text; a "
                "constant replacement; from the start of the string.",
            ),
            "RegExpExtract": (
                _regexp_extract,
                "A constant pattern in the subset that Java and Rust share; a constant group.",
            ),
            "StringSplit": (
                _split,
                "A constant pattern in the subset that Java and Rust share, without anchors; a constant limit.",
            ),
            "InitCap": (arguments(_string), "Spark's code computes texts that are not ASCII."),
            "Levenshtein": (arguments(_string, _string), "Without a threshold."),
            "Overlay": (_overlay, "A constant start from 1, and a constant length."),
            "StringSplitSQL": (_split_sql, "A constant delimiter."),
            "StringReplace": (arguments(_string, _string, _string), ""),
            "StringLPad": (all_of(arguments(_string, _int, _string), constant_text(2)), "A constant pad."),
            "StringRPad": (all_of(arguments(_string, _int, _string), constant_text(2)), "A constant pad."),
            "StringInstr": (arguments(_string, _string), ""),
            "StringLocate": (_locate, "From the start of the string."),
            "Reverse": (arguments(lambda t: t == STRING or array(t)), "Strings and arrays."),
            "StringRepeat": (arguments(_string, _int), ""),
            "Ascii": (arguments(_string), ""),
            "Chr": (arguments(one_of(LONG)), ""),
            "SoundEx": (arguments(_string), ""),
            "StringSpace": (arguments(_int), ""),
            "BitLength": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "FindInSet": (arguments(_string, _string), ""),
            "SubstringIndex": (_substring_index, "A constant delimiter that does not overlap itself."),
            "StringTranslate": (_translate, "Constants; no character is both replaced and put in."),
            "StaticInvoke": (_static_invoke, "Padding of CHAR columns, and base64."),
        },
    ),
    **rules(
        "Digests and encodings",
        {
            "Md5": (arguments(one_of(BINARY)), ""),
            "Sha1": (arguments(one_of(BINARY)), ""),
            "Sha2": (arguments(one_of(BINARY), _int), ""),
            "Crc32": (arguments(one_of(BINARY)), ""),
            "XxHash64": (_hashed, "Not on floats, decimals and nested types."),
            "Hex": (arguments(one_of(LONG, STRING, BINARY)), ""),
            "Unhex": (all_of(arguments(_string), option_in("failOnError", False)), ""),
            "Bin": (arguments(one_of(LONG)), ""),
            "BitwiseCount": (arguments(lambda t: integral(t) or t == BOOLEAN), ""),
        },
    ),
}
