# SPDX-License-Identifier: Apache-2.0
"""Transports keep their contract, and messages survive the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest

from volley.errors import QueryError
from volley.plan.expressions import Alias, Call, EvalMode, Literal
from volley.plan.nodes import LocalRows, Project
from volley.plan.types import BINARY, LONG, ArrayType, DecimalType, StructField, StructType
from volley.shuffle.memory import MemoryStore
from volley.testing.contracts import NUMBER, TransportContract, numbers, result_task
from volley.transport.base import Transport
from volley.transport.codec import decode, encode
from volley.transport.local import LocalTransport


class TestLocalTransport(TransportContract):
    @pytest.fixture
    def make_transport(self) -> Callable[[int], Transport]:
        return lambda workers: LocalTransport(workers, 2, MemoryStore)


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


def test_another_protocol_version_is_refused() -> None:
    envelope = json.loads(encode(result_task(numbers(1))))
    envelope["version"] = 99
    with pytest.raises(QueryError, match="protocol 99"):
        decode(json.dumps(envelope).encode())


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
def test_what_is_no_message_is_an_error_that_readers_expect(payload: bytes) -> None:
    with pytest.raises(QueryError, match=r"no message|not part of any message"):
        decode(payload)
