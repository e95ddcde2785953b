# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a Spark job fails its attempts at once; without a JVM, over a context that is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from volley.config import Config
from volley.events import TaskMetrics
from volley.plan.nodes import Partitioning
from volley.rpc.codec import decode, encode
from volley.rpc.messages import Failure, TaskDone, TaskFailure, TaskSpec
from volley.stages.graph import Output
from volley.testing.contracts import in_a_query, numbers, query_id, stage_task, start_task
from volley.transport.sidecar_launcher import SidecarSettings
from volley.transport.spark import Application, SparkTransport

TOKEN = "the secret"


@dataclass
class Context:
    """What the transport uses of a SparkContext. Its jobs give what `answers` makes of the tasks."""

    answers: Callable[[list[bytes]], Any]
    master: str = "local[2]"
    defaultParallelism: int = 2
    properties: dict[str, Any] = field(default_factory=dict)

    def getConf(self) -> dict[str, str]:
        return {}

    def broadcast(self, value: Any) -> Any:
        return value

    def getLocalProperty(self, key: str) -> Any:
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: Any) -> None:
        self.properties[key] = value

    def cancelJobsWithTag(self, tag: str) -> None:
        pass

    def parallelize(self, payloads: list[bytes], slices: int) -> Job:
        return Job(self.answers, payloads)


@dataclass
class Job:
    answers: Callable[[list[bytes]], Any]
    payloads: list[bytes]

    def mapPartitions(self, function: Any) -> Job:
        return self

    def collect(self) -> Any:
        return self.answers(self.payloads)


def run(
    answers: Callable[[list[bytes]], Any], story: Callable[[SparkTransport], Coroutine[Any, Any, None]]
) -> None:
    application = Application(Context(answers), Config.read({}))  # type: ignore[arg-type]

    async def told() -> None:
        transport = SparkTransport(application)
        await asyncio.wait_for(story(transport), timeout=120)
        await transport.release(query_id())

    try:
        with in_a_query():
            asyncio.run(told())
    finally:
        application.control.close()


def task(number: int = 0) -> Any:
    return stage_task(numbers(1), Output(Partitioning.SINGLE), number)


def ended_elsewhere(payloads: list[bytes]) -> list[tuple[bytes, bytes]]:
    other = task(99).attempt
    return [(encode(TaskFailure(other, Failure.DATA, "X", "x")), b"") for _ in payloads]


@pytest.mark.parametrize(
    "answers",
    [
        lambda payloads: [(b"garbage", b"") for _ in payloads],
        lambda payloads: [(encode(query_id()), b"") for _ in payloads],
        lambda payloads: [],
        lambda payloads: [b"" for _ in payloads],
        lambda payloads: None,
        ended_elsewhere,
    ],
    ids=["garbage", "another message", "too few", "no pairs", "nothing", "of another attempt"],
)
def test_outcomes_that_cannot_be_read_fail_the_attempts_at_once(
    answers: Callable[[list[bytes]], Any],
) -> None:
    async def story(transport: SparkTransport) -> None:
        running = [await start_task(transport, task(number), worker=number) for number in range(2)]
        for one in running:
            failure = await one.done()
            assert isinstance(failure, TaskFailure)
            assert (failure.attempt, failure.failure) == (one.attempt, Failure.INTERNAL)
        # Their places are free again.
        for number, one in enumerate(running):
            again = replace(one.attempt, attempt=1)
            assert await transport.reserve(transport.workers()[number].name, again)

    run(answers, story)


def test_a_job_that_cannot_be_started_fails_its_attempts() -> None:
    def broken(payloads: list[bytes]) -> Any:
        raise OSError("no Java any more")

    async def story(transport: SparkTransport) -> None:
        failure = await (await start_task(transport, task())).done()
        assert isinstance(failure, TaskFailure)
        assert failure.failure is Failure.WORKER

    run(broken, story)


def test_a_task_that_cannot_be_encoded_is_an_error_of_its_start() -> None:
    async def story(transport: SparkTransport) -> None:
        worker = transport.workers()[0].name
        odd = replace(task(), plan=object())
        assert await transport.reserve(worker, odd.attempt)
        with pytest.raises(TypeError, match="not part of any message"):
            await transport.start(worker, odd)
        assert await transport.reserve(worker, odd.attempt)

    run(lambda payloads: [], story)


def test_attempts_end_as_their_spark_tasks_say() -> None:
    def done(payloads: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
        attempt = decode(payloads[0], TaskSpec).attempt
        first_try = replace(attempt, attempt=attempt.attempt * 100)
        return iter([(encode(TaskDone(first_try, (), TaskMetrics(1, 8, 0.1), "127.0.0.1:1")), b"")])

    async def story(transport: SparkTransport) -> None:
        outcome = await (await start_task(transport, task())).done()
        assert isinstance(outcome, TaskDone)
        assert transport.holders() == {"127.0.0.1:1"}
        assert [worker.cores for worker in transport.workers()] == [1, 1]

    run(done, story)


def test_the_token_of_sidecars_is_not_shown() -> None:
    settings = SidecarSettings(TOKEN, ("", "", ""), False, 1, 1, {})
    assert TOKEN not in repr(settings)
