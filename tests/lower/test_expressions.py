# SPDX-License-Identifier: Apache-2.0
"""Every supported expression against Catalyst, row by row, on values chosen to hurt."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.releases import is_before, runnable
from volley.testing.expressions import Verdict, compare_expressions
from volley.testing.session import conf

_NEGATIVE_NAN = struct.unpack("d", struct.pack("Q", 0xFFF8000000000001))[0]
_INTEGERS = {
    "tinyint": (pa.int8(), [-128, 127, -1, 0, 1, 100, None]),
    "smallint": (pa.int16(), [-32768, 32767, -1, 0, 1, 181, None]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, -1, 0, 1, 46341, None]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, -1, 0, 1, 3037000500, None]),
}
_FLOATS = {
    "float": (pa.float32(), [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.5, 3.4e38, 1e-45, None]),
    "double": (
        pa.float64(),
        [
            0.0,
            -0.0,
            math.nan,
            _NEGATIVE_NAN,
            math.inf,
            -math.inf,
            1.5,
            -2.5,
            1e308,
            2.0**31,
            2.0**63,
            None,
            -(2.0**63),
            2147483647.5,
            -2147483648.5,
            5e-324,
            128.7,
        ],
    ),
}
_DECIMAL_TYPES = [
    ((5, 2), (5, 2)),
    ((15, 2), (15, 2)),
    ((15, 2), (38, 0)),
    ((18, 0), (10, 5)),
    ((18, 18), (38, 18)),
    ((20, 10), (38, 37)),
    ((38, 2), (38, 2)),
    ((38, 10), (25, 2)),
    # Spark 3.5 fails to plan a literal of the first type.
    *([] if is_before("4.0") else [((38, 38), (38, 6))]),
]
_TEXTS = [
    "", "a", "abc", "héllo wörld", "  pad  ", "\ttab\n", "ÀÉß", "İi", "ΑΣ", "日本語", "😀x😀", "%_\\", "a%b_c", "a\\b",
    "12", "-7", "true", "2020-02-29", "x" * 50, None, "ab\ncd", "line\r\n", "a.b", "abcabc", "ABC", "\u2028", "e\u0301",
]  # fmt: skip
_NUMBER_TEXTS = [
    "0", "-0", "+1", "12", "-7", "127", "128", "-129", "2147483647", "2147483648", "9223372036854775807", "abc", "",
    "9223372036854775808", "000012", "1.5", "-1.5", ".5", "5.", "1e3", "1.005", "123456789012345678.123456789012345678",
    "99999999.995", "0.005", "-0.005", "1.5d", "NaN", "Infinity", "true", "false", "TRUE", "t", "2020-01-01",
    "2020-1-1", "2020-02-30", "0000-01-01", "9999-12-31", "1582-10-10", "2020", "  12", None, "1 ", "16777217",
    "9007199254740993",
]  # fmt: skip
# The ends of Java's, chrono's and Arrow's calendars, the Gregorian change, leap days, and the first day of year 1.
_DAYS = [
    0, -1, 18321, 18322, -719162, -719528, -719529, 2932896, 2932897, -141427, -141428, 11016, 59, 365, 366, None,
    20000, -(2**31), 2**31 - 1, 95026236, 95026237, -96465292, -96465293, 106751991, 106751992, -106751992, -800000,
]  # fmt: skip
_MICROS = [
    0, -1, 1, 86399999999, 86400000000, -86400000000, -86400000001, -62135596800000000, 253402300799999999, -(2**63),
    2**63 - 1, 1582934400123456, None, -62167219200000001, 2**62, 8210266876800000000,
]  # fmt: skip

_COMPARISONS = [
    "a = b", "a <=> b", "a < b", "a <= b", "a > b", "a >= b", "a <> b", "a in (b, a)", "coalesce(a, b)", "nullif(a, b)",
    "if(a > b, a, b)", "case when a > b then a when b is null then null else b end", "a is null", "isnotnull(b)",
    "greatest(a, b)", "least(a, b)",
]  # fmt: skip
_ARITHMETIC = [
    "a + b", "a - b", "a * b", "a / b", "a % b", "pmod(a, b)", "-a", "+a", "abs(a)", "try_add(a, b)",
    "try_subtract(a, b)", "try_multiply(a, b)", "try_divide(a, b)", *runnable(["try_mod(a, b)"]), "a + 1", "1 - a",
    "2 * a",
    "b <> 0 and a / b > 1", "b = 0 or a % b = 1", "if(b = 0, false, a % b = 1)",
    "case when b <> 0 then a % b = 1 end", "coalesce(if(b = 0, true, null), a % b = 1)", "if(b = 0, 0D, a / b)",
    "ceil(a)", "floor(a)", "round(a)", "sqrt(a)", "signum(a)",
]  # fmt: skip
# DataFusion would like to compare what is cast, and cast the literal back.
_WITH_LITERALS = [
    "cast(a as int) = 1", "cast(a as tinyint) <> 5", "try_cast(a as tinyint) in (0, 1)", "cast(a as bigint) < 1",
    "cast(a as decimal(3,0)) = 1", "try_cast(a as decimal(3,1)) >= 0.1", "cast(a as decimal(38,0)) = 0",
    "round(a) = 0", "floor(a) > 0", "a + 1 > 5", "try_subtract(a, 1) < 0", "a / 3 = 0", "a * a <> 0", "-a < 0",
    "abs(a) > 1", "a div 2 = 0", "pmod(a, 3) = 1",
]  # fmt: skip
_BITS = ["a & b", "a | b", "a ^ b", "~a"]
_SHIFTS = [
    "shiftleft(a, 33)", "shiftright(a, 65)", "shiftright(a, 31)", "shiftrightunsigned(a, 1)",
    "shiftrightunsigned(a, -1)", "shiftleft(a, -1)", "a div b",
]  # fmt: skip
_NUMBER_TYPES = [
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "decimal(3,0)", "decimal(10,2)",
    "decimal(38,10)", "decimal(38,37)",
]  # fmt: skip
_STRINGS = [
    "upper(s)", "lower(s)", "length(s)", "octet_length(s)", "concat(s, u)", "concat(s, 'x', u)", "concat_ws('-', s, u)",
    "trim(s)", "ltrim(s)", "rtrim(s)", "trim(both u from s)", "trim(leading 'a' from s)", "startswith(s, u)",
    "endswith(s, u)", "contains(s, u)", "s like 'a%'", "s like '%b%c'", "s like '%a_c%'", "s like '%'", "s like '_'",
    "s like ''", r"s like '%\\%%'", r"s like '%\\_%c'", "replace(s, u, 'Z')", "replace(s, u)", "lpad(s, 5, 'xy')",
    "rpad(s, 5, 'xy')", "lpad(s, length(u) - 1, 'xy')", "rpad(s, length(u) - 1, 'xy')", "lpad(s, 5, '')",
    "rpad(s, 0, 'x')", "lpad(s, -1, 'x')", "instr(s, u)", "locate(u, s)",
    "reverse(s)", "repeat(s, 2)", "repeat(s, -1)", "ascii(s)", "left(s, 2)", "right(s, 2)", "left(s, -1)", "s = u",
    "s < u", "s <=> u", "s in ('a', 'abc', null)", "greatest(s, u)", "least(s, u)", "nvl2(s, u, 'k')",
    "s rlike '^a'", "s rlike 'b$'", "s rlike 'a.b'", "s rlike '[^a]c$'", "s rlike '(a|b)+c'", r"s rlike '\\d\\w'",
    "s rlike '^[a-c]+$'", r"s rlike '\\.'", "cast(s as binary)", "length(cast(s as binary))", "s ilike 'A%'",
    "cast(s as binary) < cast(u as binary)",
]  # fmt: skip
_SUBSTRINGS = [
    f"substring(s, {start}, {size})"
    for start in (-100, -3, -1, 0, 1, 2, 100, -(2**31), 2**31 - 1)
    for size in (-1, 0, 1, 2, 2**31 - 1)
]
_DATES = [
    "year(d)", "month(d)", "day(d)", "dayofweek(d)", "weekday(d)", "dayofyear(d)", "quarter(d)", "weekofyear(d)",
    "date_add(d, n)", "date_sub(d, n)", "datediff(d, e)", "add_months(d, n)", "last_day(d)", "trunc(d, 'year')",
    "trunc(d, 'MM')", "trunc(d, 'week')", "d = e", "d < e", "d <=> e", "greatest(d, e)", "cast(d as string)",
    "cast(d as timestamp)", "cast(d as timestamp_ntz)", "unix_date(d)", "date_from_unix_date(n)", "d - interval 10 day",
    "cast(cast(d as timestamp) as date)", "d in (date'2020-02-29', null)",
]  # fmt: skip
_TIMES = [
    "hour(t)", "minute(t)", "second(t)", "year(t)", "cast(t as date)", "cast(z as date)", "cast(t as bigint)", "t = v",
    "cast(t as timestamp_ntz)", "cast(z as timestamp)", "t < v", "t <=> v", "greatest(t, v)", "coalesce(t, v)",
    "t in (timestamp'2020-01-01', null)",
]  # fmt: skip


_STRUCTS = [
    "r.a", "r.b", "r is null", "r is not null", "coalesce(r.a, 7)", "named_struct('a', i, 'b', r.b)", "struct(i, r)",
    "if(i = 1, r, null)",
]  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """One table and the expressions to evaluate on it."""

    name: str
    table: pa.Table
    expressions: Sequence[str]


def _pairs(arrow_type: pa.DataType, left: Sequence[Any], right: Sequence[Any] | None = None) -> pa.Table:
    a, b = zip(*itertools.product(left, right or left), strict=True)
    return pa.table({"a": pa.array(a, arrow_type), "b": pa.array(b, arrow_type)})


def _casts(*targets: str) -> list[str]:
    return [f"{cast}(a as {target})" for target in targets for cast in ("cast", "try_cast")]


def _decimals(precision: int, scale: int) -> list[Decimal | None]:
    # From text: Python's own arithmetic would round to 28 digits.
    digits = ["0", "1", "-1", "5", "9" * precision, "-" + "9" * precision, "3" * precision, "6" * precision]
    return [None, *(Decimal(f"{text}E-{scale}") for text in digits)]


def _decimal_table(left: tuple[int, int], right: tuple[int, int]) -> pa.Table:
    a, b = zip(*itertools.product(_decimals(*left), _decimals(*right)), strict=True)
    return pa.table({"a": pa.array(a, pa.decimal128(*left)), "b": pa.array(b, pa.decimal128(*right))})


def _dated() -> pa.Table:
    numbers = [0, 1, -1, -13, 5000, 2**31 - 1, -(2**31), None]
    days, others = zip(*itertools.product(_DAYS, numbers), strict=True)
    rotated = [_DAYS[(7 * i) % len(_DAYS)] for i in range(len(days))]
    return pa.table(
        {
            "d": pa.array(days, pa.int32()).cast(pa.date32()),
            "e": pa.array(rotated, pa.int32()).cast(pa.date32()),
            "n": pa.array(others, pa.int32()),
        }
    )


def _timed() -> pa.Table:
    a, b = zip(*itertools.product(_MICROS, _MICROS), strict=True)
    utc, local = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
    left, right = pa.array(a, pa.int64()), pa.array(b, pa.int64())
    return pa.table({"t": left.cast(utc), "v": right.cast(utc), "z": right.cast(local)})


def _structs() -> pa.Table:
    rows = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    return pa.table({"i": pa.array([1, None, 3], pa.int32()), "r": pa.array(rows, struct)})


def _texts() -> pa.Table:
    s, u = zip(*itertools.product(_TEXTS, ["", "a", "abc", "é", "😀", "%", " ", None]), strict=True)
    return pa.table({"s": pa.array(s), "u": pa.array(u)})


def _corpora() -> list[Corpus]:
    corpora = []
    for name, (arrow_type, values) in _INTEGERS.items():
        shifts = _SHIFTS if name in ("int", "bigint") else []
        numbers = [*_COMPARISONS, *_ARITHMETIC, *_WITH_LITERALS]
        expressions = [*numbers, *_BITS, *shifts, *_casts(*_NUMBER_TYPES)]
        corpora.append(Corpus(name, _pairs(arrow_type, values), expressions))
    for name, (arrow_type, values) in _FLOATS.items():
        lists = ["a in (1.5D, -2.5D, double('NaN'))", f"a in ({', '.join(f'{n}.5D' for n in range(12))})"]
        expressions = [
            *_COMPARISONS,
            *_ARITHMETIC,
            *lists,
            "isnan(a)",
            "nanvl(a, b)",
            *_casts(*_NUMBER_TYPES),
        ]
        corpora.append(Corpus(name, _pairs(arrow_type, values), expressions))
    for left, right in _DECIMAL_TYPES:
        expressions = [
            *_COMPARISONS, *_ARITHMETIC, *_WITH_LITERALS, *_casts(*_NUMBER_TYPES), "a * (1 - b)",
            "a * (1 - b) * (1 + b)", "a / 3", "round(a, 1)", "a div b",
        ]  # fmt: skip
        corpora.append(
            Corpus(f"decimal{left}{right}".replace(" ", ""), _decimal_table(left, right), expressions)
        )
    booleans = _pairs(pa.bool_(), [True, False, None])
    logic = [
        "a and b",
        "a or b",
        "not a",
        *_COMPARISONS,
        *_casts("int", "bigint", "double", "string", "decimal(3,1)", "decimal(1,1)"),
    ]
    texts = pa.table({"a": pa.array(_NUMBER_TEXTS)})
    from_text = _casts(
        "tinyint", "int", "bigint", "float", "double", "boolean", "decimal(10,2)", "decimal(38,10)", "date"
    )
    corpora += [
        Corpus("boolean", booleans, logic),
        Corpus("string", _texts(), [*_STRINGS, *_SUBSTRINGS]),
        Corpus("text", texts, from_text),
        Corpus("date", _dated(), _DATES),
        Corpus("timestamp", _timed(), _TIMES),
        Corpus("struct", _structs(), _STRUCTS),
    ]
    return corpora


# Of types whose rules are alike one, and of the pairs of decimals those with the most different types of a result.
_ALIKE = {"tinyint", "int", "float"}
_DECIMALS = {"decimal(15,2)(15,2)", "decimal(38,2)(38,2)", "decimal(38,38)(38,6)"}
# Where values without ANSI mode differ from those with it, and not only errors.
_LEGACY = {"bigint", "text", "timestamp"}


def _is_common(corpus: str, ansi: bool) -> bool:
    if "decimal" in corpus:
        return corpus in _DECIMALS and ansi == (corpus != "decimal(38,2)(38,2)")
    return corpus not in _ALIKE and (ansi or corpus in _LEGACY)


CASES = [
    pytest.param(
        corpus,
        ansi,
        id=f"{corpus.name}-{'ansi' if ansi else 'legacy'}",
        marks=[] if _is_common(corpus.name, ansi) else [pytest.mark.slow],
    )
    for corpus in _corpora()
    for ansi in (True, False)
]


def _must_not_fail_alone(corpus: Corpus, expression: str, ansi: bool) -> bool:
    """Whether the native engine fails only on rows on which Spark does: otherwise common rows cost a replay."""
    if corpus.name in (*_INTEGERS, *_FLOATS):
        return expression in _ARITHMETIC and expression not in ("ceil(a)", "floor(a)", "round(a)")
    if "decimal" not in corpus.name:
        return corpus.name == "boolean"
    if expression == "a % b":
        return True
    # Without ANSI the low bits of large numbers remain, if there are at most 38 digits.
    keeps_low_bits = expression in ("cast(a as tinyint)", "cast(a as int)", "cast(a as bigint)")
    return not ansi and (keeps_low_bits or (expression == "a div b" and "(38,37)" not in corpus.name))


@pytest.mark.parametrize(("corpus", "ansi"), CASES)
def test_native_values_are_catalysts(
    spark: SparkSession, tmp_path: Path, subtests: Any, corpus: Corpus, ansi: bool
) -> None:
    """Equal values and types; where Spark fails, failure. An expression that is not native counts as a skip."""
    for verdict in compare_expressions(spark, corpus.table, corpus.expressions, tmp_path, ansi=ansi):
        with subtests.test(verdict.expression):
            _check(verdict)
            if _must_not_fail_alone(corpus, verdict.expression, ansi):
                assert not verdict.alarms


@pytest.mark.parametrize("ansi", [True, False])
def test_decimals_without_digits_before_the_point(
    spark: SparkSession, tmp_path: Path, subtests: Any, ansi: bool
) -> None:
    """If no precision may be lost, results have such types too. None of them fails needlessly."""
    expressions = [
        "a + b",
        "a - b",
        "1 - a",
        "a * b",
        "a % b",
        "ceil(a)",
        "floor(a)",
        "round(a)",
        "signum(a)",
    ]
    with conf(spark, {"spark.sql.decimalOperations.allowPrecisionLoss": "false"}):
        table = _decimal_table((38, 38), (38, 38))
        verdicts = compare_expressions(spark, table, expressions, tmp_path, ansi=ansi)
    for verdict in verdicts:
        with subtests.test(verdict.expression):
            _check(verdict)
            assert not verdict.alarms


def _check(verdict: Verdict) -> None:
    if verdict.refusal:
        pytest.skip(str(verdict.refusal))
    assert not verdict.wrong, verdict.wrong[0]
    assert not verdict.eager, "all rows together fail, and none of them alone"
    assert verdict.equal, "not one row had the same value on both sides"
