# SPDX-License-Identifier: Apache-2.0
"""Which calls have a native form for most values only: Spark's own code computes them for the other rows."""

from __future__ import annotations

from collections.abc import Callable

from volley.plan.expressions import Call
from volley.plan.types import BINARY, DOUBLE, FRACTIONAL, STRING, DecimalType
from volley.support.string_rules import is_guarded_regex


def is_partly_native(call: Call) -> bool:
    test = _TESTS.get(call.function)
    return test is not None and test(call)


def _parses(call: Call) -> bool:
    return call.arguments[0].type == STRING and call.type not in (STRING, BINARY)


def _casts(call: Call) -> bool:
    """Texts have unusual forms, and doubles may be too close to the middle between two decimals."""
    return _parses(call) or (call.arguments[0].type in FRACTIONAL and isinstance(call.type, DecimalType))


_TESTS: dict[str, Callable[[Call], bool]] = {
    "Cast": _casts,
    "Round": lambda call: call.type == DOUBLE,
    "Lower": lambda call: True,
    **dict.fromkeys(("GetTimestamp", "UnixTimestamp", "ToUnixTimestamp"), _parses),
    "InitCap": lambda call: True,
    **dict.fromkeys(("RLike", "RegExpReplace", "RegExpExtract"), is_guarded_regex),
}
