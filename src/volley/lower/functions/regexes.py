# SPDX-License-Identifier: Apache-2.0
"""Regular expressions, and the texts that they split, find and replace."""

from __future__ import annotations

from functools import cache, reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr
from datafusion import functions as f

from volley.lower.functions.jvm import else_spark
from volley.lower.registry import translates
from volley.lower.semantics import Kernel, constant, kernel
from volley.plan.expressions import Call
from volley.plan.types import to_arrow
from volley.support.regexes import LINE_ENDS, Regex, read_regex, read_replacement
from volley.support.signatures import literal_value
from volley.support.string_rules import is_guarded_regex


def _regex(call: Call, captured: int | None = None) -> Regex:
    found = read_regex(str(literal_value(call.arguments[1])), captured)
    assert found is not None
    return found


def _where_portable(call: Call, arguments: list[Expr], regex: Regex, found: Expr) -> Expr:
    """`found` for the texts on which the pattern means the same in Java."""
    text = arguments[0]
    guards: list[Expr] = []
    if regex.has_end:
        guards += [~f.ends_with(text, constant(end, pa.string())) for end in LINE_ENDS]
    if regex.only_ascii:
        guards.append(f.octet_length(text) == f.character_length(text).cast(pa.int32()))
    return else_spark(call, arguments, reduce(and_, guards), found) if guards else found


@translates("RLike", fails=is_guarded_regex)
def rlike(call: Call, arguments: list[Expr]) -> Expr:
    regex = _regex(call)
    found = f.regexp_like(arguments[0], constant(regex.rust, pa.string()))
    return _where_portable(call, arguments, regex, found)


@translates("RegExpReplace", fails=is_guarded_regex)
def regexp_replace(call: Call, arguments: list[Expr]) -> Expr:
    regex = _regex(call)
    parts = read_replacement(str(literal_value(call.arguments[2])), regex.groups)
    assert parts is not None
    written = "".join(f"${{{part}}}" if isinstance(part, int) else part.replace("$", "$$") for part in parts)
    pattern, replacement, every = (constant(value, pa.string()) for value in (regex.rust, written, "g"))
    found = f.regexp_replace(arguments[0], pattern, replacement, every)
    return _where_portable(call, arguments, regex, found)


@translates("RegExpExtract", fails=is_guarded_regex)
def regexp_extract(call: Call, arguments: list[Expr]) -> Expr:
    """The empty text where nothing is found, or where the group is not part of the match."""
    group = literal_value(call.arguments[2])
    assert isinstance(group, int)
    regex = _regex(call, group)
    matches = f.regexp_match(arguments[0], constant(regex.rust, pa.string()))
    first = f.array_element(matches, constant(1, pa.int64()))
    nothing = f.when(arguments[0].is_not_null(), constant("", pa.string())).end()
    return _where_portable(call, arguments, regex, f.coalesce(first, nothing))


@translates("StringSplit")
def split(call: Call, arguments: list[Expr]) -> Expr:
    regex, limit = _regex(call), literal_value(call.arguments[2])
    assert isinstance(limit, int)
    run = _split(regex.rust, limit, to_arrow(call.type))
    return kernel(f"split_{regex.rust}_{limit}_{call.type}", run, to_arrow(call.type), pa.string())(
        arguments[0]
    )


@cache
def _split(pattern: str, limit: int, wanted: pa.DataType) -> Kernel:
    most = limit - 1 if limit > 0 else None

    def run(texts: pa.Array) -> pa.Array:
        if most == 0:
            parts = pa.ListArray.from_arrays(
                pa.array(range(len(texts) + 1), pa.int32()), texts, mask=texts.is_null()
            )
        else:
            parts = pc.split_pattern_regex(texts, pattern, max_splits=most)
        return parts.cast(wanted)

    return run
