"""The driver's end of the control channel of tasks in Spark's executors: what it answers, and to whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow.flight as flight
import pytest

from volley.errors import ConfigError
from volley.ids import AttemptId
from volley.loop import LoopThread
from volley.security import Security
from volley.testing.contracts import attempt_id
from volley.transport.codec import decode, encode
from volley.transport.control import Answer, Pull, Refused
from volley.transport.messages import TaskDone, TaskFailure, Units, Want
from volley.transport.spark_control import Channel, Control

SECRET = Security(token="a" * 64)
OURS = attempt_id()
# The third try of Spark at our attempt 0.
THEIRS = AttemptId(OURS.task, 2)


class Driver:
    """A control with one attempt, and what was heard of it."""

    def __init__(self) -> None:
        self.control = Control("127.0.0.1", "127.0.0.1", SECRET, insecure=False)
        self.loop = LoopThread()
        self.outcomes: list[TaskDone | TaskFailure] = []
        self.met: list[str] = []
        self.channel = self.on_loop(self._channel())
        self.control.open(OURS, self.channel)

    async def _channel(self) -> Channel:
        return Channel(self.outcomes.append, self.met.append)

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.submit(work).result(10)

    def next_want(self) -> Want:
        async def wanted() -> Want:
            return await anext(self.channel.wants())

        want: Want = self.on_loop(wanted())
        return want

    def give(self, units: Units) -> None:
        async def give() -> None:
            self.channel.give(units)

        self.on_loop(give())

    def ask(self, action: str, message: Any, security: Security = SECRET) -> Any:
        return self.send(action, encode(message), security)

    def send(self, action: str, body: bytes, security: Security = SECRET) -> Any:
        client = security.connect(self.control.address)
        try:
            (reply,) = client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=20))
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
    return Pull(Want(attempt, 0, after, 5), "127.0.0.1:4711", wait_seconds)


def units(since: int, *payloads: bytes) -> Units:
    return Units(THEIRS, 0, since, payloads, since + len(payloads), over=False)


def test_a_pull_waits_for_its_units(driver: Driver) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(driver.ask("pull", pull())))
    asking.start()
    want = driver.next_want()
    assert (want.attempt, want.after, want.host) == (THEIRS, 0, "127.0.0.1")
    driver.give(units(0, b"a", b"b"))
    asking.join(10)
    assert answers == [units(0, b"a", b"b")]
    assert driver.met == ["127.0.0.1:4711"]


def test_what_is_asked_again_is_one_want_until_it_is_answered(driver: Driver) -> None:
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Answer(False)
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Answer(False)
    assert driver.next_want().after == 0
    driver.give(units(0, b"a"))
    assert driver.ask("pull", pull()) == units(0, b"a")
    # An answer that was lost on its way is asked for at the same place, and wanted again.
    assert driver.ask("pull", pull(wait_seconds=0.01)) == Answer(False)
    assert driver.next_want().after == 0
    # From another place it is another question, and what was asked before is not its answer.
    assert driver.ask("pull", pull(after=1, wait_seconds=0.01)) == Answer(False)
    assert driver.next_want().after == 1
    driver.give(units(0, b"a"))
    assert driver.ask("pull", pull(after=1, wait_seconds=0.01)) == Answer(False)
    driver.give(units(1, b"b"))
    assert driver.ask("pull", pull(after=1)) == units(1, b"b")


def test_an_attempt_that_is_over_is_refused_also_while_it_waits(driver: Driver) -> None:
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(driver.ask("pull", pull())))
    asking.start()
    driver.next_want()

    async def close() -> None:
        driver.channel.close()

    driver.on_loop(close())
    asking.join(10)
    answers.append(driver.ask("pull", pull()))
    answers.append(driver.ask("pull", pull(attempt=AttemptId(OURS.task, 100))))
    assert [type(answer) for answer in answers] == [Refused] * 3


def test_an_end_is_heard(driver: Driver) -> None:
    done = TaskDone(THEIRS, (), 3, 24, 0.5, (), "127.0.0.1:4711")
    assert driver.ask("ended", done) == Answer()
    assert driver.outcomes == [done]


def test_only_who_has_the_token_is_heard(driver: Driver) -> None:
    for security in (Security(), Security(token="b" * 64)):
        with pytest.raises(flight.FlightUnauthenticatedError):
            driver.ask("pull", pull(), security)
    assert driver.met == []


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", encode(Answer())])
def test_what_is_no_message_is_refused(driver: Driver, body: bytes) -> None:
    assert isinstance(driver.send("pull", body), Refused)


def test_it_does_not_listen_for_the_network_without_tls() -> None:
    with pytest.raises(ConfigError, match="no TLS"):
        Control("0.0.0.0", "driver", SECRET, insecure=False)


def test_channels_end_with_their_attempt() -> None:
    async def story() -> list[Want]:
        channel = Channel(lambda outcome: None, lambda holder: None)
        channel.close()
        return [want async for want in channel.wants()]

    assert asyncio.run(story()) == []
