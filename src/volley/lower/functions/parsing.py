"""Casts from text. Only plain forms are read natively; any other text fails the query and is left to Spark.

Spark's own reading is generous (blanks, signs, exponents, `1.5d`, partial dates) and differs by mode. The plain
forms below have one meaning in all of it.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import Expr

from volley.lower.semantics import ExactnessError, Kernel, kernel
from volley.plan.types import BOOLEAN, DATE, INTEGRAL, DataType, to_arrow

_WHOLE = r"^-?[0-9]{1,18}$"
_FRACTION = r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_BOOLEAN = r"^(true|false)$"


def parse(value: Expr, target: DataType) -> Expr:
    """The value that the text stands for. Numbers out of range and impossible dates fail in every mode."""
    arrow_type = to_arrow(target)
    plain = kernel(f"plain_text_{target}", _plain(_form(target)), pa.string(), pa.string())
    return plain(value).cast(arrow_type)


def _form(target: DataType) -> str:
    if target in INTEGRAL:
        return _WHOLE
    if target == DATE:
        return _DAY
    return _BOOLEAN if target == BOOLEAN else _FRACTION


@cache
def _plain(form: str) -> Kernel:
    def run(values: pa.Array) -> pa.Array:
        if not pc.all(pc.match_substring_regex(values, form)).as_py():
            raise ExactnessError("text that only Spark can cast")
        return values

    return run
