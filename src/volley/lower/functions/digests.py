# SPDX-License-Identifier: Apache-2.0
"""Digests, checksums and the text forms of bytes and bits."""

from __future__ import annotations

import pyarrow as pa
from datafusion import Expr
from datafusion import functions as f

from volley.lower.registry import translates
from volley.lower.semantics import constant
from volley.plan.expressions import Call
from volley.plan.types import INTEGRAL, to_arrow


@translates("Md5")
def md5(call: Call, arguments: list[Expr]) -> Expr:
    return f.md5(arguments[0]).cast(pa.string())


@translates("Sha1")
def sha1(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.sha1(arguments[0]).cast(pa.string())


@translates("Sha2")
def sha2(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.sha2(*arguments).cast(pa.string())


@translates("Crc32")
def crc32(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.crc32(arguments[0])


@translates("Hex")
def hex_(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.hex(arguments[0]).cast(pa.string())


@translates("Unhex")
def unhex(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.unhex(arguments[0]).cast(pa.binary())


@translates("Bin")
def bin_(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.bin(arguments[0]).cast(pa.string())


@translates("BitwiseCount")
def bit_count(call: Call, arguments: list[Expr]) -> Expr:
    # Java counts in the sign extended to 64 bits.
    value = arguments[0].cast(pa.int64()) if call.arguments[0].type in INTEGRAL else arguments[0]
    return f.spark.bit_count(value).cast(pa.int32())


@translates("XxHash64")
def xxhash64(call: Call, arguments: list[Expr]) -> Expr:
    return f.spark.xxhash64(*arguments)


_LINE = 76


def base64(call: Call, arguments: list[Expr]) -> Expr:
    """Spark's own, in lines unless its second argument says otherwise."""
    text = f.spark.base64(arguments[0]).cast(pa.string())
    if getattr(call.arguments[1], "value", None) is False:
        return text
    line, replacement = constant(f"(.{{{_LINE}}})", pa.string()), constant("${1}\r\n", pa.string())
    lines = f.regexp_replace(text, line, replacement, constant("g", pa.string()))
    # The last line has no end, also when it is full.
    return f.rtrim(lines, constant("\r\n", pa.string())).cast(to_arrow(call.type))
