# SPDX-License-Identifier: Apache-2.0
"""The support table and the translations: one for each, honest types, and reasons that name the root."""

from __future__ import annotations

from decimal import Decimal

import volley.lower.expressions  # noqa: F401  (fills the registry)
from volley.lower.registry import TRANSLATIONS, may_fail
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    EvalMode,
    Expression,
    Literal,
    SortKey,
)
from volley.plan.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    OtherType,
)
from volley.support.expressions import EXPRESSIONS, check_expression
from volley.support.patterns import like_pattern
from volley.support.reasons import Reason, Unsupported


def column(data_type: DataType) -> Attribute:
    return Attribute(1, "x", data_type)


def add(left: Expression, right: Expression, mode: EvalMode | None = EvalMode.ANSI) -> Call:
    return Call("Add", (left, right), left.type, mode)


def reasons(expression: Expression) -> list[Reason]:
    return [found.reason for found in check_expression(expression)]


def test_every_supported_class_has_a_translation_and_the_other_way_round() -> None:
    assert set(EXPRESSIONS) == set(TRANSLATIONS)


def test_every_rule_has_a_family_for_the_documentation() -> None:
    assert all(rule.family for rule in EXPRESSIONS.values())


def test_plain_expressions_are_accepted() -> None:
    total = add(column(LONG), Literal(1, LONG))
    assert reasons(Alias(2, "total", total)) == []
    assert reasons(SortKey(total, True, True)) == []


def test_an_unknown_class_is_named() -> None:
    (found,) = check_expression(Call("JsonTuple", (column(STRING), column(STRING)), INTEGER))
    assert found.reason is Reason.EXPRESSION
    assert found.what == "JsonTuple"


def test_only_the_root_reason_is_given_and_only_once() -> None:
    unknown = Call("JsonTuple", (column(STRING), column(STRING)), INTEGER)
    assert reasons(add(unknown, add(unknown, Literal(1, INTEGER)))) == [Reason.EXPRESSION]


def test_a_type_that_is_not_carried_is_a_reason() -> None:
    assert reasons(Call("IsNull", (column(OtherType("map")),), BOOLEAN)) == [Reason.DATA_TYPE]


def test_arithmetic_of_unknown_mode_is_not_guessed() -> None:
    assert reasons(add(column(LONG), column(LONG), None)) == [Reason.CAPTURE]


def test_operands_of_different_types_are_refused() -> None:
    assert reasons(Call("EqualTo", (column(LONG), column(DOUBLE)), BOOLEAN)) == [Reason.ARGUMENT_TYPES]


def test_the_arguments_of_an_aggregate_are_judged_and_the_aggregate_is_not() -> None:
    good = Call("SomeAggregate", (column(LONG),), LONG)
    bad = Call("SomeAggregate", (Call("JsonTuple", (), INTEGER),), LONG)
    assert reasons(AggregateCall(good, AggregateMode.PARTIAL, False, None, 9)) == []
    assert reasons(AggregateCall(bad, AggregateMode.PARTIAL, False, None, 9)) == [Reason.EXPRESSION]


def test_a_cast_of_time_needs_a_session_in_utc() -> None:
    def cast(zone: str) -> Call:
        options = (("timeZoneId", f"Some({zone})"),)
        return Call("Cast", (Attribute(1, "t", DATE),), TIMESTAMP, EvalMode.ANSI, options)

    assert reasons(cast("UTC")) == []
    assert reasons(cast("Europe/Paris")) == [Reason.TIME_ZONE]


def test_like_patterns() -> None:
    assert like_pattern(r"100\%_\\", "\\") == r"100\%_\\"
    assert like_pattern(r"a#%#_##\%", "#") == r"a\%\_#\\%"
    assert like_pattern(r"a\b", "\\") is None
    assert like_pattern("a\\", "\\") is None
    assert like_pattern("a%", "%") is None


def test_what_cannot_fail_is_known_not_to() -> None:
    small = Call(
        "Multiply",
        (column(DecimalType(15, 2)), column(DecimalType(15, 2))),
        DecimalType(31, 4),
        EvalMode.ANSI,
    )
    large = Call(
        "Multiply",
        (column(DecimalType(30, 2)), column(DecimalType(15, 2))),
        DecimalType(38, 4),
        EvalMode.ANSI,
    )
    widening = Call("Cast", (column(INTEGER),), LONG, EvalMode.ANSI)
    narrowing = Call("Cast", (column(LONG),), INTEGER, EvalMode.ANSI)
    assert not may_fail(small)
    assert may_fail(large)
    assert not may_fail(widening)
    assert may_fail(narrowing)
    assert not may_fail(Literal(Decimal(1), DecimalType(1, 0)))


def test_a_reason_names_the_sql_function_before_the_catalyst_class() -> None:
    assert str(Unsupported(Reason.EXPRESSION, "DateFormatClass")).endswith("] date_format (DateFormatClass)")
    assert str(Unsupported(Reason.OPERATOR, "RDDScanExec")).endswith("] RDDScanExec")
