# SPDX-License-Identifier: Apache-2.0
"""What runs in a Python worker of Spark: it lets the executor's sidecar perform one attempt, and waits for its end.

The Spark task stands for the native one: where it is placed, that one runs; as long as it lives, that one may go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark import Broadcast, TaskContext

from volley.errors import PeerLost, QueryError
from volley.ids import AttemptId
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import RESULT_TICKET, Ack, Await
from volley.rpc.handshake import Hello, Identity, process_name
from volley.rpc.messages import Failure, TaskDone, TaskFailure, TaskSpec
from volley.security import Security
from volley.transport.executor import Executor, SidecarSettings, sidecar_address

ATTEMPTS_OF_SPARK = 100
"""Spark may try a task again, or twice at once, under one attempt of ours: these are told apart by numbers below."""

_WAIT_SECONDS = 2.0
_TELL_SECONDS = 5.0
_CALL_SECONDS = 10.0
_ROOM_SECONDS = 60.0
_ROWS_SECONDS = 300.0
_ROOM_STEP_SECONDS = 0.05


def ours(attempt: AttemptId) -> AttemptId:
    """The attempt of ours that Spark tries under this number."""
    return AttemptId(attempt.task, attempt.attempt // ATTEMPTS_OF_SPARK)


@cache
def _sidecar(settings: _Settings) -> Sidecar:
    return Sidecar(settings.value)


class _Settings:
    """Hashable, so that a Python worker that is used again keeps its connection."""

    def __init__(self, value: tuple[SidecarSettings, Identity, int]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value[0].token)


def perform(
    shared: Broadcast[tuple[SidecarSettings, Identity, int]], tasks: Iterator[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """For each encoded TaskSpec of a partition (there is one): how it ended, and the rows of a result task."""
    context = TaskContext.get()
    number = context.attemptNumber() if context else 0
    for payload in tasks:
        task = decode(payload, TaskSpec)
        mine = AttemptId(task.attempt.task, task.attempt.attempt * ATTEMPTS_OF_SPARK + number)
        yield _sidecar(_Settings(shared.value)).perform(replace(task, attempt=mine))


def own_sidecar(shared: Broadcast[tuple[SidecarSettings, Identity, int]]) -> str:
    """Where the sidecar of this executor listens, which is started if there is none. In a Python worker of Spark."""
    settings, _, local_cores = shared.value
    return sidecar_address(Executor.around(local_cores), settings)


class Sidecar:
    """A connection to the sidecar of this executor, after a handshake in the driver's name."""

    def __init__(self, shared: tuple[SidecarSettings, Identity, int]) -> None:
        settings, driver, local_cores = shared
        self.address = sidecar_address(Executor.around(local_cores), settings)
        ca, certificate, key = settings.files
        self._security = Security.read("", ca, certificate, key, environment={"VOLLEY_TOKEN": settings.token})
        self._client = Client(self.address, self._security, role="sidecar")
        self._client.greet(Hello(driver, process_name("executor")))

    def perform(self, task: TaskSpec) -> tuple[bytes, bytes]:
        self._start(task)
        rows = _Rows(self._security, self.address, task.attempt) if task.output is None else None
        outcome = self._outcome(task.attempt)
        if isinstance(outcome, TaskFailure) and outcome.failure is Failure.WORKER:
            # Spark tries elsewhere, as it does for any task that its executor could not run.
            raise QueryError(f"{outcome.attempt}: {outcome.code}: {outcome.message}")
        if isinstance(outcome, TaskDone):
            outcome = replace(outcome, made_by=self.address)
            if task.output is not None and task.output.enough_rows is not None:
                self._tell(task.driver, outcome)
            return encode(outcome), rows.taken(outcome.rows) if rows else b""
        return encode(outcome), b""

    def _start(self, task: TaskSpec) -> None:
        # A task that Spark has given up on may hold its room for a moment longer.
        deadline = time.monotonic() + _ROOM_SECONDS
        while not self._ask("perform", task, Ack, _CALL_SECONDS).granted:
            if time.monotonic() > deadline:
                raise QueryError(f"the sidecar at {self.address} has no room for {task.attempt}.")
            time.sleep(_ROOM_STEP_SECONDS)

    def _outcome(self, attempt: AttemptId) -> TaskDone | TaskFailure:
        while True:
            answer: TaskDone | TaskFailure | Ack = self._ask(
                "await",
                Await(attempt, _WAIT_SECONDS),
                TaskDone | TaskFailure | Ack,
                _WAIT_SECONDS + _CALL_SECONDS,
            )
            if not isinstance(answer, Ack):
                return answer

    def _tell(self, driver: str, outcome: TaskDone) -> None:
        """The others of this job may go on for long, and these rows may be all that is wanted."""
        client = Client(driver, self._security, role="driver", timeout_seconds=_TELL_SECONDS)
        # Otherwise Spark says it when the job is over.
        with suppress(QueryError), client:
            client.call("ended", outcome)

    def _ask(self, action: str, message: Any, expect: Any, timeout_seconds: float) -> Any:
        try:
            return self._client.call(action, message, expect, timeout_seconds=timeout_seconds)
        except PeerLost:
            # The next task finds another sidecar, or starts one.
            _sidecar.cache_clear()
            raise


class _Rows:
    """Takes the rows of a result task while it runs; it waits when nobody does."""

    def __init__(self, security: Security, address: str, attempt: AttemptId) -> None:
        self._sink = pa.BufferOutputStream()
        self._count = 0
        self._problem: Exception | None = None
        self._client = security.connect(address)
        self._ticket = flight.Ticket(RESULT_TICKET + encode(attempt))
        self._thread = threading.Thread(target=self._take, name="volley-rows", daemon=True)
        self._thread.start()

    def taken(self, expected: int) -> bytes:
        # The task has ended, so all its rows are on their way.
        self._thread.join(_ROWS_SECONDS)
        if self._thread.is_alive() or self._problem is not None or self._count != expected:
            raise QueryError(f"{self._count} of {expected} rows arrived: {self._problem}")
        return self._sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _take(self) -> None:
        try:
            reader = self._client.do_get(self._ticket)
            with pa.ipc.new_stream(self._sink, reader.schema) as writer:
                for chunk in reader:
                    self._count += chunk.data.num_rows
                    writer.write_batch(chunk.data)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._problem = error
        finally:
            self._client.close()
