# SPDX-License-Identifier: Apache-2.0
"""The translation of each Catalyst class, and whether it can fail on data.

Each module of `lower.functions` registers its own; `lower.expressions` looks them up.
"""

from __future__ import annotations

from collections.abc import Callable

from datafusion import Expr

from volley.plan.expressions import Call, EvalMode, Expression, walk

Translation = Callable[[Call, list[Expr]], Expr]
"""From a call and its lowered arguments to an expression with exactly the Arrow type of `call.type`."""

Predicate = Callable[[Call], bool]

TRANSLATIONS: dict[str, Translation] = {}
_FAILS: dict[str, Predicate] = {}


def never(call: Call) -> bool:
    return False


def always(call: Call) -> bool:
    return True


def in_ansi_mode(call: Call) -> bool:
    return call.mode is EvalMode.ANSI


def translates(*functions: str, fails: Predicate = never) -> Callable[[Translation], Translation]:
    """Register the translation of these Catalyst classes. `fails` says whether a call may fail on some value."""

    def register(translation: Translation) -> Translation:
        for function in functions:
            TRANSLATIONS[function] = translation
            _FAILS[function] = fails
        return translation

    return register


def may_fail(expression: Expression) -> bool:
    """Whether evaluating this on rows for which Spark would not evaluate it could fail the query."""
    return any(
        isinstance(part, Call) and _FAILS.get(part.function, always)(part) for part in walk(expression)
    )
