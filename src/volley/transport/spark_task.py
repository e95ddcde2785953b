# SPDX-License-Identifier: Apache-2.0
"""What runs in a Python worker of Spark: it lets the executor's sidecar perform one attempt, and waits for its end.

The Spark task stands for the native one: where it is placed, that one runs; as long as it lives, that one may go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark import Broadcast, TaskContext

from volley.errors import HandshakeRefused, QueryError
from volley.ids import AttemptId
from volley.security import Security
from volley.transport.codec import decode, encode
from volley.transport.control import RESULT_TICKET, Ack, Await, Refused
from volley.transport.executor import Executor, SidecarSettings, sidecar_address
from volley.transport.handshake import Hello, Identity, process_name, to_json, welcome_of
from volley.transport.messages import Failure, TaskDone, TaskFailure, TaskSpec

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
        task = decode(payload)
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
        self._client = self._security.connect(self.address)
        hello = Hello(driver, f"{process_name('executor')}")
        welcome = welcome_of(self._send("hello", to_json(hello), _CALL_SECONDS))
        if welcome.refusal:
            raise HandshakeRefused(welcome.refusal)

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
        while not self._ask("perform", task, _CALL_SECONDS).granted:
            if time.monotonic() > deadline:
                raise QueryError(f"the sidecar at {self.address} has no room for {task.attempt}.")
            time.sleep(_ROOM_STEP_SECONDS)

    def _outcome(self, attempt: AttemptId) -> TaskDone | TaskFailure:
        while True:
            answer = self._ask("await", Await(attempt, _WAIT_SECONDS), _WAIT_SECONDS + _CALL_SECONDS)
            if not isinstance(answer, Ack):
                return answer  # type: ignore[no-any-return]  # what else the codec gives for this action

    def _tell(self, driver: str, outcome: TaskDone) -> None:
        """The others of this job may go on for long, and these rows may be all that is wanted."""
        options = flight.FlightCallOptions(timeout=_TELL_SECONDS)
        client = self._security.connect(driver)
        try:
            list(client.do_action(flight.Action("ended", encode(outcome)), options))
        except (flight.FlightError, OSError, ValueError):
            return  # Spark says it when the job is over
        finally:
            client.close()

    def _ask(self, action: str, message: Any, timeout_seconds: float) -> Any:
        answer = decode(self._send(action, encode(message), timeout_seconds))
        if isinstance(answer, Refused):
            raise QueryError(f"the sidecar at {self.address}: {answer.message}")
        return answer

    def _send(self, action: str, body: bytes, timeout_seconds: float) -> bytes:
        options = flight.FlightCallOptions(timeout=timeout_seconds)
        try:
            (reply,) = self._client.do_action(flight.Action(action, body), options)
        except (flight.FlightError, OSError, ValueError) as error:
            # The next task finds another sidecar, or starts one.
            _sidecar.cache_clear()
            raise QueryError(f"the sidecar at {self.address} does not answer: {error}") from None
        return bytes(reply.body.to_pybytes())


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
