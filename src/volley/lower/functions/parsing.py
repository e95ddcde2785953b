# SPDX-License-Identifier: Apache-2.0
"""Casts from strings. Only plain forms are parsed natively; for any other the query fails, and Spark runs it.

Spark's parser is lenient (spaces, signs, exponents, `1.5d`, partial dates) and differs by mode. The plain forms below
mean the same in all modes.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.semantics import ExactnessError, Kernel, kernel
from volley.plan.expressions import EvalMode
from volley.plan.types import BOOLEAN, DATE, INTEGRAL, DataType, to_arrow

_WHOLE = r"^-?[0-9]{1,18}$"
_FRACTION = r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_BOOLEAN = r"^(true|false)$"
# No form of an integer contains a letter, so this is NULL wherever Spark does not fail.
_NO_NUMBER = "[A-Za-z]"


def parse(value: Expr, target: DataType, mode: EvalMode | None) -> Expr:
    """Parse the text. Numbers out of range and impossible dates fail in every mode."""
    nonsense = _NO_NUMBER if target in INTEGRAL and mode is not EvalMode.ANSI else ""
    name = f"plain_text_{target}_{bool(nonsense)}"
    plain = kernel(name, _plain(_form(target), nonsense), pa.string(), pa.string())
    return plain(value).cast(to_arrow(target))


def _form(target: DataType) -> str:
    if target in INTEGRAL:
        return _WHOLE
    if target == DATE:
        return _DAY
    return _BOOLEAN if target == BOOLEAN else _FRACTION


@cache
def _plain(form: str, nonsense: str) -> Kernel:
    """Pass texts of this form; nonsense becomes NULL, and any other text fails."""

    def run(values: pa.Array) -> pa.Array:
        readable = pc.match_substring_regex(values, form)
        if pc.all(readable).as_py():
            return values
        if not nonsense or not pc.all(pc.or_(readable, pc.match_substring_regex(values, nonsense))).as_py():
            raise ExactnessError("text that only Spark can cast")
        return pc.if_else(readable, values, pa.scalar(None, pa.string()))

    return run
