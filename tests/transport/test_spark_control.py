# SPDX-License-Identifier: Apache-2.0
"""The driver's end of the control channel of tasks in Spark's executors: what it answers, and to whom."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow.flight as flight
import pytest
from pyspark.sql.types import LongType, StructType

from volley.errors import ConfigError
from volley.events import TaskMetrics
from volley.ids import AttemptId
from volley.plan.expressions import Attribute
from volley.plan.nodes import FeedInput, SourceScan
from volley.plan.types import LONG
from volley.process.loop import LoopThread
from volley.rpc.codec import decode, encode
from volley.rpc.control import Ack, Pull, Refused
from volley.rpc.messages import Failure, SplitBatch, SplitRequest, TaskDone, TaskFailure, TaskSpec
from volley.security import Security
from volley.shuffle.memory import MemoryStore
from volley.splits.datasource import encode as encode_partition
from volley.testing.contracts import attempt_id
from volley.testing.sources import NumbersPartition
from volley.transport.spark_control import Channel, Control
from volley.worker.external_attempts import ExternalAttempts
from volley.worker.slots import Attempt, Slots
from volley.worker.split_puller import SplitPuller

SECRET = Security(token="a" * 64)
OURS = attempt_id()
# The third try of Spark at our attempt 0.
THEIRS = AttemptId(OURS.task, 2)
SCHEMA = StructType().add("id", LongType()).add("split", LongType()).add("pid", LongType())


class Driver:
    """A control with one attempt, and what was heard of it."""

    def __init__(self) -> None:
        self.met: list[str] = []
        self.control = Control("127.0.0.1", "127.0.0.1", SECRET, insecure=False, on_sidecar=self.met.append)
        self.loop = LoopThread()
        self.outcomes: list[TaskDone | TaskFailure] = []
        self.channel = self.on_loop(self._channel())
        self.control.open(OURS, self.channel)

    async def _channel(self) -> Channel:
        return Channel(self.outcomes.append, self.met.append)

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.submit(work).result(120)

    def next_want(self) -> SplitRequest:
        async def wanted() -> SplitRequest:
            return await anext(self.channel.split_requests())

        want: SplitRequest = self.on_loop(wanted())
        return want

    def give(self, splits: SplitBatch) -> None:
        async def give() -> None:
            self.channel.give(splits)

        self.on_loop(give())

    def ask(self, action: str, message: Any, security: Security = SECRET) -> Any:
        return self.send(action, encode(message), security)

    def send(self, action: str, body: bytes, security: Security = SECRET) -> Any:
        client = security.connect(self.control.address)
        try:
            (reply,) = client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=120))
            return decode(reply.body.to_pybytes())
        finally:
            client.close()

    def close(self) -> None:
        self.control.close()
        self.loop.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


def pull(after: int = 0, wait_seconds: float = 10.0, attempt: AttemptId = THEIRS) -> Pull:
    return Pull(SplitRequest(attempt, 0, after, 5), "127.0.0.1:4711", wait_seconds)


def splits(since: int, *payloads: bytes) -> SplitBatch:
    return SplitBatch(THEIRS, 0, since, payloads, since + len(payloads), over=False)


def test_a_pull_waits_for_its_splits(driver: Driver) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(driver.ask("pull", pull())))
    asking.start()
    want = driver.next_want()
    assert (want.attempt, want.after, want.host) == (THEIRS, 0, "127.0.0.1")
    driver.give(splits(0, b"a", b"b"))
    asking.join(120)
    assert answers == [splits(0, b"a", b"b")]
    assert driver.met == ["127.0.0.1:4711"]


def test_a_repeated_pull_is_one_request_until_it_is_answered(driver: Driver) -> None:
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Ack(False)
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Ack(False)
    assert driver.next_want().after == 0
    driver.give(splits(0, b"a"))
    assert driver.ask("pull", pull()) == splits(0, b"a")
    # An answer that was lost on its way is asked for at the same place, and wanted again.
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Ack(False)
    assert driver.next_want().after == 0
    # From another place it is another question, and what was asked before is not its answer.
    assert driver.ask("pull", pull(after=1, wait_seconds=0.01)) == Ack(False)
    assert driver.next_want().after == 1
    driver.give(splits(0, b"a"))
    assert driver.ask("pull", pull(after=1, wait_seconds=0.01)) == Ack(False)
    driver.give(splits(1, b"b"))
    assert driver.ask("pull", pull(after=1)) == splits(1, b"b")


def test_an_attempt_that_is_over_is_refused_also_while_it_waits(driver: Driver) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(driver.ask("pull", pull())))
    asking.start()
    driver.next_want()

    async def close() -> None:
        driver.channel.close()

    driver.on_loop(close())
    asking.join(120)
    answers.append(driver.ask("pull", pull()))
    answers.append(driver.ask("pull", pull(attempt=AttemptId(OURS.task, 100))))
    assert [type(answer) for answer in answers] == [Refused] * 3


def test_an_outcome_reaches_the_channel(driver: Driver) -> None:
    done = TaskDone(THEIRS, (), TaskMetrics(3, 24, 0.5), "127.0.0.1:4711")
    assert driver.ask("ended", done) == Ack()
    assert driver.outcomes == [done]


def test_calls_without_the_token_are_refused(driver: Driver) -> None:
    for security in (Security(), Security(token="b" * 64)):
        with pytest.raises(flight.FlightUnauthenticatedError):
            driver.ask("pull", pull(), security)
    assert driver.met == []


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", encode(Ack())])
def test_an_invalid_message_is_refused(driver: Driver, body: bytes) -> None:
    assert isinstance(driver.send("pull", body), Refused)


def test_it_does_not_listen_for_the_network_without_tls() -> None:
    with pytest.raises(ConfigError, match="no TLS"):
        Control("0.0.0.0", "driver", SECRET, insecure=False, on_sidecar=print)


def test_channels_end_with_their_attempt() -> None:
    async def story() -> list[SplitRequest]:
        channel = Channel(lambda outcome: None, lambda holder: None)
        channel.close()
        return [want async for want in channel.split_requests()]

    assert asyncio.run(story()) == []


class TestWorker:
    """A real attempt in a worker that pulls: over Numbers, whose splits the test gives out itself."""

    def attempt(self, driver: Driver, address: str, silence_seconds: float = 30.0) -> Attempt:
        ids = Attribute(1, "id", LONG)
        described = {"class": "volley.testing.sources:Numbers", "options": {}, "schema": SCHEMA.json()}
        scan = SourceScan("numbers", json.dumps(described), ("id",), (ids,))
        spec = TaskSpec(THEIRS, FeedInput(0, scan), None, ordered=False, inputs=(), driver=address)

        async def started() -> Attempt:
            slots = Slots("w", 1, 1, MemoryStore("w"))
            performed = ExternalAttempts(slots, SplitPuller("127.0.0.1:4711", SECRET, silence_seconds))
            assert performed.start(spec)
            return slots[THEIRS]

        made: Attempt = driver.on_loop(started())
        return made

    def outcome(self, driver: Driver, attempt: Attempt) -> TaskDone | TaskFailure:
        ended: TaskDone | TaskFailure = driver.loop.submit(attempt.done()).result(120)
        return ended

    def test_splits_come_by_pulling_until_there_are_no_more(self, driver: Driver) -> None:
        attempt = self.attempt(driver, driver.control.address)
        for number in range(3):
            want = driver.next_want()
            assert (want.attempt, want.after) == (THEIRS, number)
            payload = encode_partition(NumbersPartition(number, number * 10, 10), pickles=False)
            driver.give(SplitBatch(THEIRS, 0, number, (payload,), number + 1, over=number == 2))
        ended = self.outcome(driver, attempt)
        assert isinstance(ended, TaskDone)
        assert ended.rows == 30

    def test_it_ends_when_the_driver_does_not_want_it_any_more(self, driver: Driver) -> None:
        attempt = self.attempt(driver, driver.control.address)
        driver.next_want()
        driver.control.forget(OURS)

        async def close() -> None:
            driver.channel.close()

        driver.on_loop(close())
        ended = self.outcome(driver, attempt)
        assert isinstance(ended, TaskFailure)
        assert ended.failure is Failure.INTERNAL

    def test_it_fails_as_a_lost_worker_does_when_the_driver_is_silent(self, driver: Driver) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            attempt = self.attempt(driver, f"127.0.0.1:{taken.getsockname()[1]}", silence_seconds=0.1)
            ended = self.outcome(driver, attempt)
        assert isinstance(ended, TaskFailure)
        # Spark tries it again elsewhere.
        assert ended.failure is Failure.WORKER
        assert "does not reply" in ended.message
