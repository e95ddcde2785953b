# SPDX-License-Identifier: Apache-2.0
"""The rows of the expression support table. The notes appear in the documentation.

Here are the rows for comparisons, conditions, arithmetic and casts; those for strings, dates and nested types are in
modules of their own.
"""

from __future__ import annotations

from volley.plan.expressions import JVM_EXPRESSION, JVM_FIELD, Call
from volley.plan.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    DecimalType,
    StructType,
)
from volley.support import casts
from volley.support.date_rules import DATES
from volley.support.nested_rules import NESTED
from volley.support.reasons import Reason, Unsupported
from volley.support.signatures import (
    Check,
    ExpressionRule,
    all_of,
    any_type,
    arguments,
    decimal,
    fractional,
    integral,
    literal_value,
    number,
    one_of,
    option_in,
    ordered,
    refuse,
    rules,
    same,
    with_mode,
)
from volley.support.string_rules import STRINGS

_compared = same(ordered)
_boolean = one_of(BOOLEAN)
_int = one_of(INTEGER)


def _in(call: Call) -> Unsupported | None:
    candidates = [literal_value(candidate) for candidate in call.arguments[1:]]
    if fractional(call.arguments[0].type) and any(isinstance(c, float) and c == 0 for c in candidates):
        # Spark keeps a long list as a Java set, where -0.0 differs from 0.0; in a short list they are equal.
        return refuse(call, "zero in a list of floats", Reason.ARGUMENT_VALUE)
    return _compared(call)


def _case_when(call: Call) -> Unsupported | None:
    values = [*call.arguments[1::2], *(call.arguments[-1:] if len(call.arguments) % 2 else ())]
    if any(value.type != call.type for value in values):
        return refuse(call, "branches of different types")
    return None


def _branches(start: int) -> Check:
    def check(call: Call) -> Unsupported | None:
        if any(argument.type != call.type for argument in call.arguments[start:]):
            return refuse(call, "arguments of different types")
        return None

    return check


def _extreme(call: Call) -> Unsupported | None:
    if fractional(call.type):
        return refuse(call, f"{call.type}: the order of the arguments decides which zero is returned")
    return same(ordered)(call)


def _arithmetic(call: Call) -> Unsupported | None:
    if decimal(call.type):
        return with_mode(arguments(decimal, decimal))(call)
    return with_mode(all_of(same(number), _branches(0)))(call)


def _pmod(call: Call) -> Unsupported | None:
    return refuse(call, "decimals") if decimal(call.type) else _arithmetic(call)


def _signed(call: Call) -> Unsupported | None:
    if isinstance(call.type, DecimalType) and call.type.scale > 34:
        return refuse(call, f"{call.type}: Spark rounds to 34 digits when it negates")
    return all_of(arguments(number), option_in("failOnError", True, False))(call)


def _round(call: Call) -> Unsupported | None:
    scale = literal_value(call.arguments[1])
    if not isinstance(scale, int) or scale < 0:
        return refuse(call, "a scale that is negative or not a constant", Reason.ARGUMENT_VALUE)
    if call.arguments[0].type == FLOAT:
        return refuse(call, "float")
    if call.arguments[0].type == DOUBLE and scale > 15:
        return refuse(call, "a double to more than 15 digits", Reason.ARGUMENT_VALUE)
    return arguments(number, _int)(call)


_ANY_ORDERED = "Any type except structs and arrays. NaN equals itself and is the largest; -0.0 equals 0.0."

EXPRESSIONS: dict[str, ExpressionRule] = {
    **rules(
        "Spark's own expressions",
        {
            JVM_EXPRESSION: (
                same(any_type, alike=False),
                "Any other deterministic expression, evaluated by Spark's own code in the driver's JVM.",
            ),
            JVM_FIELD: (
                arguments(lambda t: isinstance(t, StructType)),
                "One of several such expressions of an operator, which are evaluated together.",
            ),
        },
    ),
    **rules(
        "Comparison and logic",
        {
            "EqualTo": (_compared, _ANY_ORDERED),
            "EqualNullSafe": (_compared, _ANY_ORDERED),
            "LessThan": (_compared, _ANY_ORDERED),
            "LessThanOrEqual": (_compared, _ANY_ORDERED),
            "GreaterThan": (_compared, _ANY_ORDERED),
            "GreaterThanOrEqual": (_compared, _ANY_ORDERED),
            "In": (_in, _ANY_ORDERED + " No constant zero in a list of floats."),
            "And": (arguments(_boolean, _boolean), "Short-circuits: the left side may decide alone."),
            "Or": (arguments(_boolean, _boolean), "Short-circuits: the left side may decide alone."),
            "Not": (arguments(_boolean), ""),
            "IsNull": (arguments(any_type), "Any type."),
            "IsNotNull": (arguments(any_type), "Any type."),
            "IsNaN": (arguments(fractional), ""),
        },
    ),
    **rules(
        "Conditional",
        {
            "CaseWhen": (_case_when, "Any type."),
            "If": (_branches(1), "Any type."),
            "Coalesce": (_branches(0), "Any type."),
            "Greatest": (_extreme, "Not on float and double."),
            "Least": (_extreme, "Not on float and double."),
            "NaNvl": (same(fractional), ""),
            "NormalizeNaNAndZero": (arguments(fractional), "Added by Spark around keys."),
            "KnownFloatingPointNormalized": (arguments(fractional), "Added by Spark around keys."),
            "KnownNotNull": (arguments(any_type), "Added by Spark's optimizer."),
            "KnownNullable": (arguments(any_type), "Added by Spark's optimizer."),
            "PromotePrecision": (arguments(decimal), "Added by Spark's analyzer."),
        },
    ),
    **rules(
        "Arithmetic",
        {
            "Add": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Subtract": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Multiply": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Divide": (
                with_mode(same(lambda t: fractional(t) or decimal(t), alike=False)),
                "Doubles and decimals; decimals round half up.",
            ),
            "IntegralDivide": (
                with_mode(same(lambda t: t == LONG or decimal(t), alike=False)),
                "Longs and decimals.",
            ),
            "Remainder": (_arithmetic, "Numbers."),
            "Pmod": (_pmod, "Integers and floats."),
            "UnaryMinus": (_signed, "Numbers."),
            "UnaryPositive": (arguments(number), "Numbers."),
            "Abs": (_signed, "Numbers."),
            "Signum": (arguments(one_of(DOUBLE)), ""),
            "Sqrt": (arguments(one_of(DOUBLE)), "NaN for negative numbers."),
            "Floor": (arguments(number), "Numbers."),
            "Ceil": (arguments(number), "Numbers."),
            "Rint": (arguments(one_of(DOUBLE)), ""),
            "Factorial": (arguments(_int), ""),
            "ToDegrees": (arguments(one_of(DOUBLE)), ""),
            "ToRadians": (arguments(one_of(DOUBLE)), ""),
            "Round": (
                _round,
                "Numbers except float, to a constant scale of 0 or more; doubles in the middle by Spark's code.",
            ),
        },
    ),
    **rules(
        "Decimal internals",
        {
            "CheckOverflow": (
                all_of(arguments(decimal), option_in("nullOnOverflow", True, False)),
                "Added by Spark.",
            ),
            "MakeDecimal": (
                all_of(arguments(one_of(LONG)), option_in("nullOnOverflow", True, False)),
                "Added by Spark around sums of small decimals.",
            ),
            "UnscaledValue": (
                arguments(lambda t: isinstance(t, DecimalType) and t.precision <= 18),
                "Added by Spark around sums of small decimals.",
            ),
        },
    ),
    **rules(
        "Bits",
        {
            "BitwiseAnd": (same(integral), "Integers."),
            "BitwiseOr": (same(integral), "Integers."),
            "BitwiseXor": (same(integral), "Integers."),
            "BitwiseNot": (same(integral), "Integers."),
            "ShiftLeft": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
            "ShiftRight": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
            "ShiftRightUnsigned": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
        },
    ),
    **rules(
        "Cast",
        {
            "Cast": (
                casts.check_cast,
                "Between numbers, booleans, dates and timestamps; to strings from integers, decimals, booleans, "
                "dates and timestamps; from strings to numbers, dates, timestamps and booleans.",
            ),
            "CheckOverflowInTableInsert": (_branches(0), "The casts of an INSERT."),
        },
    ),
    **STRINGS,
    **DATES,
    **NESTED,
}
