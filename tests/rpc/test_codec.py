# SPDX-License-Identifier: Apache-2.0
"""Messages survive the wire, and nothing else gets in."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from decimal import Decimal
from typing import Any, get_args

import pytest

from volley.errors import QueryError
from volley.events import FetchMetrics, TaskMetrics
from volley.ids import QueryId
from volley.plan.expressions import Alias, Call, EvalMode, Literal
from volley.plan.nodes import LocalRows, Node, Project
from volley.plan.types import BINARY, LONG, ArrayType, DecimalType, StructField, StructType
from volley.rpc.blocks import Block, BlockRequest
from volley.rpc.codec import decode, encode, message_classes
from volley.rpc.control import Await, News, Push, Reserve, Watch
from volley.rpc.handshake import read_hello, read_welcome
from volley.rpc.messages import SplitRequest
from volley.rpc.shuffle_messages import PushChunks, PushedChunk, ReserveBytes
from volley.testing.contracts import NUMBER, attempt_id, numbers, result_task


def test_a_message_comes_back_as_it_was() -> None:
    strange = Project(
        (
            Alias(2, "d", Literal(Decimal("-1.20"), DecimalType(5, 2))),
            Alias(3, "b", Literal(b"\x00\xff", BINARY)),
            Alias(4, "n", Literal(None, StructType((StructField("x", ArrayType(LONG, True), False),)))),
            Alias(
                5, "f", Call("Add", (NUMBER, Literal(float("inf"), LONG)), LONG, EvalMode.TRY, (("k", None),))
            ),
        ),
        LocalRows((NUMBER,), b"\x01\x02"),
    )
    task = result_task(strange)
    assert decode(encode(task)) == task
    assert type(decode(encode(task)).plan.expressions[3].child.mode) is EvalMode


def test_every_operator_can_be_sent() -> None:
    """A module whose nodes the codec does not know would leave queries to Spark, and only with worker daemons."""
    assert set(get_args(Node)) <= set(message_classes())


def test_another_protocol_version_is_refused() -> None:
    envelope = json.loads(encode(result_task(numbers(1))))
    envelope["version"] = 99
    with pytest.raises(QueryError, match="protocol 99"):
        decode(json.dumps(envelope).encode())


def test_a_field_that_has_its_default_is_not_sent() -> None:
    """So that a peer of an older version, which does not know the field, can read the message."""
    task = result_task(numbers(1))
    sent = json.loads(encode(task))["message"]
    assert task.sorts_joins
    assert "sorts_joins" not in sent
    changed = replace(task, sorts_joins=False)
    assert json.loads(encode(changed))["message"]["sorts_joins"] is False
    assert decode(encode(changed)) == changed
    # These are equal to the default, and yet not the same.
    for zero in (-0.0, 0):
        fetched = decode(encode(FetchMetrics(0, wait_seconds=zero)))
        assert repr(fetched.wait_seconds) == repr(zero)


def test_a_report_may_say_more_than_is_known() -> None:
    report = json.loads(encode(TaskMetrics(3, 8, 0.5)))
    report["message"]["joules"] = [7, {"$decimal": "1.5"}]
    assert decode(json.dumps(report).encode()) == TaskMetrics(3, 8, 0.5)
    report["message"]["heat"] = [{"$": "Heat", "room": {"$enum": "Room", "value": "cellar"}}]
    assert decode(json.dumps(report).encode()) == TaskMetrics(3, 8, 0.5)


def test_what_does_not_only_report_may_not_hold_unknown_classes() -> None:
    news = json.loads(encode(News((), draining=False)))
    news["message"]["heat"] = [{"$": "Heat"}]
    with pytest.raises(QueryError, match="'Heat', which is not part of any message"):
        decode(json.dumps(news).encode())


def test_a_class_that_is_no_message_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(object())
    with pytest.raises(QueryError, match="Popen"):
        decode(json.dumps({"version": 1, "message": {"$": "Popen", "args": ["true"]}}).encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[1]",
        b"3",
        b"{}",
        b'{"version": 1}',
        b'{"version": 1, "message": {"$": "QueryId"}}',
        b'{"version": 1, "message": {"$": "QueryId", "value": "q", "more": 1}}',
        b'{"version": 1, "message": {"$decimal": "x"}}',
        b'{"version": 1, "message": {"$bytes": "?"}}',
        b'{"version": 1, "message": {"$enum": "EvalMode", "value": "sometimes"}}',
        b'{"version": 1, "message": {"$": ["QueryId"]}}',
    ],
)
def test_bytes_that_are_not_a_message_are_a_query_error(payload: bytes) -> None:
    with pytest.raises(QueryError, match=r"not a message|not part of any message"):
        decode(payload)


ATTEMPT = attempt_id()


@pytest.mark.parametrize(
    "message",
    [
        ReserveBytes(ATTEMPT, -1),
        ReserveBytes(ATTEMPT, 2**63),
        ReserveBytes(ATTEMPT, float("nan")),  # type: ignore[arg-type]
        ReserveBytes(ATTEMPT, float("inf")),  # type: ignore[arg-type]
        ReserveBytes(ATTEMPT, True),
        ReserveBytes(ATTEMPT, "8"),  # type: ignore[arg-type]
        ReserveBytes(QueryId("q"), 8),  # type: ignore[arg-type]
        PushChunks(ATTEMPT, (PushedChunk(0, 0, -8, 0),)),
        PushChunks(ATTEMPT, PushedChunk(0, 0, 8, 0)),  # type: ignore[arg-type]
        Push("driver", ATTEMPT, 0),
        Watch("driver", 0, float("nan")),
        Watch("driver", 0, -1.0),
        Await(ATTEMPT, float("inf")),
        Await(ATTEMPT, None),  # type: ignore[arg-type]
        Reserve("driver\n", ATTEMPT),
        Reserve("x" * 1000, ATTEMPT),
        Reserve(3, ATTEMPT),  # type: ignore[arg-type]
        SplitRequest(ATTEMPT, 0, 0, -1),
        attempt_id(task=-1),
        QueryId("../../etc"),
        QueryId(""),
        QueryId(7),  # type: ignore[arg-type]
        BlockRequest((Block(ATTEMPT, 0, "here", 1, 8),), codec="/bin/sh"),
        replace(result_task(numbers(1)), plan=ATTEMPT),  # type: ignore[arg-type]
        replace(result_task(numbers(1)), inputs=(ATTEMPT,)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_field_that_holds_what_it_may_not_is_refused(message: Any) -> None:
    with pytest.raises(QueryError, match="cannot be"):
        decode(encode(message))


def test_numbers_of_the_data_may_be_anything() -> None:
    for value in (float("-inf"), 2**100, -1):
        assert decode(encode(Literal(value, LONG))) == Literal(value, LONG)


def test_an_enum_cannot_be_used_to_make_an_unchecked_message() -> None:
    with pytest.raises(QueryError, match="QueryId"):
        decode(b'{"version": 1, "message": {"$enum": "QueryId", "value": "../.."}}')


def test_the_kind_of_a_message_can_be_asked_for() -> None:
    assert decode(encode(QueryId("q")), QueryId) == QueryId("q")
    with pytest.raises(QueryError, match="QueryId where AttemptId was expected"):
        decode(encode(QueryId("q")), type(ATTEMPT))


@pytest.mark.parametrize("form", ["[", '{"a":', '{"version": 1, "message": ['])
def test_text_that_nests_too_deeply_is_refused_like_any_other(form: str) -> None:
    payload = (form * 10 * sys.getrecursionlimit()).encode()
    with pytest.raises(QueryError, match="not a message"):
        decode(payload)
    with pytest.raises(QueryError, match="the handshake is not valid"):
        read_hello(payload)
    assert read_welcome(payload) is None


@pytest.mark.parametrize(
    "words", [[], 3, {}, {"identity": 3}, {"identity": {}, "driver": "x"}, {"driver": ["x"]}, {"cores": "x"}]
)
def test_an_invalid_handshake_is_refused(words: Any) -> None:
    payload = json.dumps(words).encode()
    with pytest.raises(QueryError, match="the handshake is not valid"):
        read_hello(payload)
    assert read_welcome(payload) is None
