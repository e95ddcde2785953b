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

from volley.lower.semantics import ExactnessError, Kernel, case, kernel
from volley.plan.expressions import EvalMode
from volley.plan.types import (
    BOOLEAN,
    BYTE,
    DATE,
    INTEGER,
    INTEGRAL,
    LONG,
    SHORT,
    DataType,
    DecimalType,
    to_arrow,
)

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


def parse_plain(value: Expr, target: DataType, otherwise: Expr) -> Expr:
    """Parse texts of a form that means the same in all modes and cannot fail; `otherwise` is for all others."""
    form = _safe_form(target)
    plain = kernel(f"is_plain_{form}", _matches(form), pa.bool_(), pa.string())
    # DataFusion casts a constant in advance, also one that is not plain.
    parsed = value.try_cast(to_arrow(target))
    # A boolean CASE would evaluate `otherwise` for every row.
    return case([(plain(value), parsed)], otherwise, lazy_boolean=target == BOOLEAN)


def _safe_form(target: DataType) -> str:
    if target in _SAFE_DIGITS:
        return f"^-?[0-9]{{1,{_SAFE_DIGITS[target]}}}$"
    if isinstance(target, DecimalType):
        whole, scale = target.precision - target.scale, target.scale
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
        return f"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else "^$a"
    if target == DATE:
        return r"^[0-9]{4}-(0[13-9]|1[0-2])-(0[1-9]|[12][0-9]|30)$|^[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])$"
    return _form(target)


_SAFE_DIGITS = {BYTE: 2, SHORT: 4, INTEGER: 9, LONG: 18}


@cache
def _matches(form: str) -> Kernel:
    def run(values: pa.Array) -> pa.Array:
        return pc.fill_null(pc.match_substring_regex(values, form), True)

    return run


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
