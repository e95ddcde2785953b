# SPDX-License-Identifier: Apache-2.0
"""The message that starts an attempt: what comes back, and which plans are decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from volley.errors import QueryError
from volley.plan.expressions import Alias, Literal
from volley.plan.nodes import Node, Project
from volley.plan.types import DOUBLE, STRING, DataType
from volley.rpc.codec import encode
from volley.rpc.control import AskHealth, Start
from volley.rpc.start import decode_start, drop_decoded_plans, encode_start
from volley.testing.contracts import attempt_id, numbers, result_task

VALUES = (0.0, -0.0, 0, False)


@pytest.fixture(autouse=True)
def without_plans() -> Iterator[None]:
    drop_decoded_plans()
    yield
    drop_decoded_plans()


def start(plan: Node, attempt: int = 0) -> Start:
    """What the worker gets."""
    task = replace(result_task(plan), attempt=attempt_id(attempt=attempt))
    return decode_start(encode_start("driver", task, attempt > 0))


def literal(value: float | str, type: DataType) -> Node:
    return Project((Alias(2, "x", Literal(value, type)),), numbers(1))


def test_a_start_comes_back_as_it_was() -> None:
    task = result_task(literal("a line\nand another", STRING))
    for is_reserved in (False, True):
        assert decode_start(encode_start("driver", task, is_reserved)) == Start("driver", task, is_reserved)


def test_a_plan_that_was_sent_before_is_the_same_object() -> None:
    first, second = start(literal("a", STRING)), start(literal("a", STRING), 1)
    assert first.task.plan is second.task.plan
    assert (first.task.attempt, second.task.attempt) == (attempt_id(), attempt_id(attempt=1))
    assert start(literal("b", STRING)).task.plan != first.task.plan
    drop_decoded_plans()
    assert start(literal("a", STRING)).task.plan is not first.task.plan


def test_plans_that_are_equal_but_not_the_same_stay_apart() -> None:
    """In Python -0.0 == 0.0, and True == 1 == 1.0."""
    zeros = [start(literal(value, DOUBLE)).task.plan for value in VALUES]
    assert len({id(plan) for plan in zeros}) == 4
    assert [encode(plan) for plan in zeros] == [encode(literal(value, DOUBLE)) for value in VALUES]
    assert len({encode(plan) for plan in zeros}) == 4


def test_a_long_plan_is_not_kept() -> None:
    plan = literal("x" * 100_000, STRING)
    assert start(plan).task.plan == plan
    assert start(plan).task.plan is not start(plan).task.plan


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\n",
        encode(AskHealth()),
        encode(AskHealth()) + b"\n" + encode(numbers(1)),
        encode(Start("driver", result_task(numbers(1)))),
        encode(Start("driver", result_task(numbers(1)))) + b"\n" + encode(AskHealth()),
    ],
)
def test_anything_else_is_an_error(payload: bytes) -> None:
    with pytest.raises(QueryError):
        decode_start(payload)
