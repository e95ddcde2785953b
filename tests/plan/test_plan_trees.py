# SPDX-License-Identifier: Apache-2.0
"""Rewriting expressions: every part is offered, what does not change is not copied, a level costs one frame."""

from __future__ import annotations

import pytest

from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    InSubquery,
    Literal,
    ScalarSubquery,
    SortKey,
    WindowCall,
    children,
    transform,
    walk,
)
from volley.plan.nodes import OneRow
from volley.plan.types import BOOLEAN, LONG

A, B, C, D, E = (Attribute(number, name, LONG) for number, name in enumerate("abcde"))
SUM = Call("Sum", (A,), LONG)
EXPRESSIONS: list[Expression] = [
    A,
    Literal(1, LONG),
    ScalarSubquery(7, OneRow(), LONG),
    Alias(8, "x", A),
    Call("Add", (A, B), LONG, options=(("failOnError", True),)),
    SortKey(A, ascending=False, nulls_first=True),
    AggregateCall(SUM, AggregateMode.PARTIAL, distinct=True, filter=None, result_id=9),
    AggregateCall(SUM, AggregateMode.FINAL, distinct=False, filter=Call("Not", (B,), BOOLEAN), result_id=9),
    InSubquery(10, A, OneRow()),
    WindowCall(SUM, (B,), (SortKey(C, True, True),), Frame(True, D, E)),
    WindowCall(SUM, (B, C), (), Frame(False, None, D)),
    WindowCall(SUM, (), (SortKey(C, True, True), SortKey(D, False, True)), Frame(False, E, None)),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: type(one).__name__)
def test_each_part_stays_in_its_place(expression: Expression) -> None:
    offered: list[Expression] = []

    def renamed(part: Expression) -> Expression:
        offered.append(part)
        return Attribute(part.id + 100, part.name, LONG) if isinstance(part, Attribute) else part

    changed = transform(expression, renamed)
    before = [part for part in walk(expression) if isinstance(part, Attribute)]
    after = [part for part in walk(changed) if isinstance(part, Attribute)]
    assert [part.id for part in after] == [part.id + 100 for part in before]
    assert len(offered) == len(list(walk(expression)))

    def back(part: Expression) -> Expression:
        return Attribute(part.id - 100, part.name, LONG) if isinstance(part, Attribute) else part

    assert transform(changed, back) == expression


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: type(one).__name__)
def test_what_does_not_change_is_not_copied(expression: Expression) -> None:
    assert transform(expression, lambda part: part) is expression


def test_children_come_before_their_parents() -> None:
    seen: list[Expression] = []

    def see(part: Expression) -> Expression:
        seen.append(part)
        return part

    transform(Call("Add", (A, Call("Add", (B, C), LONG)), LONG), see)
    for position, part in enumerate(seen):
        assert set(children(part)) <= set(seen[:position])


def test_a_deep_expression_can_be_rewritten() -> None:
    deep: Expression = A
    for _ in range(600):
        deep = Call("Add", (deep, B), LONG)
    assert transform(deep, lambda part: part) is deep
