# SPDX-License-Identifier: Apache-2.0
"""Queries that run in this process, with a transport that is asked whether all is quiet afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from volley.cancellation import CancellationToken
from volley.coordinator.options import RunOptions
from volley.coordinator.result import ResultStream
from volley.coordinator.run import execute
from volley.events import (
    Event,
    EventLog,
)
from volley.ids import AttemptId, QueryId
from volley.plan.expressions import (
    Attribute,
    Call,
    Literal,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    Node,
    Partitioning,
    Range,
)
from volley.plan.types import BOOLEAN, LONG
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.base import Transport
from volley.transport.local import LocalTransport

NUMBER = Attribute(1, "n", LONG, False)


ENDLESS = 10**15


WORKERS = 3


def numbers(count: int) -> Node:
    return Range(0, count, 1, (NUMBER,))


def none_of(child: Node) -> Node:
    return Filter(Call("LessThan", (NUMBER, Literal(0, LONG)), BOOLEAN), child)


def hashed(child: Node) -> Node:
    return Exchange(Partitioning.HASH, WORKERS, (NUMBER,), (), child)


def single(child: Node) -> Node:
    return Exchange(Partitioning.SINGLE, 1, (), (), child)


def distinct(child: Node) -> Node:
    return Aggregate((NUMBER,), (), (), (NUMBER,), child)


class HoldingTransport(Transport, Protocol):
    """A transport whose workers say what they hold."""

    @property
    def held_bytes(self) -> int: ...


Kind = TypeVar("Kind", bound=Event)


@dataclass
class Started:
    """A query, with all that a test looks at."""

    stream: ResultStream
    transport: HoldingTransport
    token: CancellationToken
    log: EventLog
    attempts: list[AttemptId] = field(default_factory=list)

    def rows(self) -> list[int]:
        return [value for batch in self.stream for value in batch.column(0).to_pylist()]

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.log.events if isinstance(event, kind)]


def start(
    plan: Node,
    *,
    transport: HoldingTransport | None = None,
    listener: Callable[[Event], None] = lambda event: None,
    timeout_seconds: float = 60,
    attempts: int = 3,
    buffer_bytes: int = 2**20,
) -> Started:
    transport = transport or LocalTransport(WORKERS, 3, MemoryStore, buffer_bytes)
    token, log = CancellationToken(), EventLog(listener)
    stream = execute(
        cut(plan, WORKERS, UNMERGED),
        transport,
        RunOptions(
            query=QueryId.new(),
            token=token,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
            events=log,
            limits=UNMERGED,
            result_buffer_bytes=buffer_bytes,
        ),
    )
    return Started(stream, transport, token, log)


def assert_quiet() -> None:
    """Nothing computes any more: the process uses next to no processor time over a tenth of a second."""
    deadline = time.monotonic() + 30
    used = 1.0
    while time.monotonic() < deadline and used > 0.03:
        before = time.process_time()
        time.sleep(0.1)
        used = time.process_time() - before
    assert used <= 0.03, f"the process still computes: {used:.2f} s of 0.1 s"
