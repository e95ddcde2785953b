# SPDX-License-Identifier: Apache-2.0
"""Which calls have a native form for most values only: Spark's own code computes them for the other rows."""

from __future__ import annotations

from collections.abc import Callable

from volley.plan.expressions import Call
from volley.plan.types import BINARY, STRING
from volley.support.string_rules import is_guarded_regex


def is_partly_native(call: Call) -> bool:
    test = _TESTS.get(call.function)
    return test is not None and test(call)


def _parses(call: Call) -> bool:
    return call.arguments[0].type == STRING and call.type not in (STRING, BINARY)


_TESTS: dict[str, Callable[[Call], bool]] = {
    "Cast": _parses,
    **dict.fromkeys(("GetTimestamp", "UnixTimestamp", "ToUnixTimestamp"), _parses),
    "InitCap": lambda call: True,
    **dict.fromkeys(("RLike", "RegExpReplace", "RegExpExtract"), is_guarded_regex),
}
