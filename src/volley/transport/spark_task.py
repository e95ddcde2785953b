# SPDX-License-Identifier: Apache-2.0
"""The body of a Spark task: it has the executor's sidecar run one attempt, and waits for the outcome.

The Spark task is the proxy of the native one, which runs on the same executor and only as long as the Spark task lives.
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
from volley.rpc.batch_validation import validate_batch
from volley.rpc.client import Client
from volley.rpc.codec import decode, encode
from volley.rpc.control import RESULT_TICKET, Ack, Await
from volley.rpc.handshake import Hello, Identity, process_name
from volley.rpc.messages import Failure, TaskDone, TaskFailure, TaskSpec
from volley.rpc.start import encode_start
from volley.security import Security
from volley.transport.sidecar_launcher import Executor, SidecarSettings, sidecar_address

ATTEMPTS_OF_SPARK = 100
"""Spark may retry or speculate a task within one of the coordinator's attempts. Each run gets a number below this."""

_WAIT_SECONDS = 2.0
_REPORT_SECONDS = 5.0
_CALL_SECONDS = 10.0
_ROOM_SECONDS = 60.0
_ROWS_SECONDS = 300.0
_ROOM_STEP_SECONDS = 0.05


def coordinator_attempt(attempt: AttemptId) -> AttemptId:
    """The coordinator's attempt to which this run of Spark belongs."""
    return AttemptId(attempt.task, attempt.attempt // ATTEMPTS_OF_SPARK)


@cache
def _sidecar(settings: _Settings) -> Sidecar:
    return Sidecar(settings.value)


class _Settings:
    """Hashable settings, so that a reused Python worker keeps its connection."""

    def __init__(self, value: tuple[SidecarSettings, Identity, int]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value[0].token)


def perform(
    shared: Broadcast[tuple[SidecarSettings, Identity, int]], tasks: Iterator[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Run each encoded TaskSpec of a partition (there is one). Yields its outcome and the rows of a result task."""
    context = TaskContext.get()
    number = context.attemptNumber() if context else 0
    for payload in tasks:
        task = decode(payload, TaskSpec)
        mine = AttemptId(task.attempt.task, task.attempt.attempt * ATTEMPTS_OF_SPARK + number)
        yield _sidecar(_Settings(shared.value)).perform(replace(task, attempt=mine))


def own_sidecar_address(shared: Broadcast[tuple[SidecarSettings, Identity, int]]) -> str:
    """The address of this executor's sidecar, started if there is none. Call it in a Python worker of Spark."""
    settings, _, local_cores = shared.value
    return sidecar_address(Executor.find(local_cores), settings)


class Sidecar:
    """A connection to the sidecar of this executor, after a handshake on behalf of the driver."""

    def __init__(self, shared: tuple[SidecarSettings, Identity, int]) -> None:
        settings, driver, local_cores = shared
        self.address = sidecar_address(Executor.find(local_cores), settings)
        ca, certificate, key = settings.files
        self._security = Security.read("", ca, certificate, key, environment={"VOLLEY_TOKEN": settings.token})
        self._client = Client(self.address, self._security, role="sidecar")
        self._welcome = self._client.greet(Hello(driver, process_name("executor")))

    def perform(self, task: TaskSpec) -> tuple[bytes, bytes]:
        self._start(task)
        rows = _Rows(self._security, self.address, task.attempt) if task.output is None else None
        outcome = self._outcome(task.attempt)
        if isinstance(outcome, TaskFailure) and outcome.failure is Failure.WORKER:
            # Let Spark retry elsewhere, as for any task that its executor could not run.
            raise QueryError(f"{outcome.attempt}: {outcome.code}: {outcome.message}")
        if isinstance(outcome, TaskDone):
            outcome = replace(outcome, made_by=self.address)
            if task.output is not None and task.output.enough_rows is not None:
                self._report(task.driver, outcome)
            return encode(outcome), rows.finish(outcome.rows) if rows else b""
        return encode(outcome), b""

    def _start(self, task: TaskSpec) -> None:
        # A task that Spark has abandoned may hold its slot for a moment longer.
        deadline = time.monotonic() + _ROOM_SECONDS
        message = encode_start("", task, True) if self._welcome.starts else encode(task)
        while not self._call("perform", message, Ack, _CALL_SECONDS).granted:
            if time.monotonic() > deadline:
                raise QueryError(f"the sidecar at {self.address} has no free slot for {task.attempt}.")
            time.sleep(_ROOM_STEP_SECONDS)

    def _outcome(self, attempt: AttemptId) -> TaskDone | TaskFailure:
        while True:
            answer: TaskDone | TaskFailure | Ack = self._call(
                "await",
                Await(attempt, _WAIT_SECONDS),
                TaskDone | TaskFailure | Ack,
                _WAIT_SECONDS + _CALL_SECONDS,
            )
            if not isinstance(answer, Ack):
                return answer

    def _report(self, driver: str, outcome: TaskDone) -> None:
        """Report an outcome to the driver before the job ends: these rows may be all that a LIMIT needs."""
        client = Client(driver, self._security, role="driver", timeout_seconds=_REPORT_SECONDS)
        # If this fails, the driver learns it from Spark when the job ends.
        with suppress(QueryError), client:
            client.call("ended", outcome)

    def _call(self, action: str, message: Any, expect: Any, timeout_seconds: float) -> Any:
        try:
            return self._client.call(action, message, expect, timeout_seconds=timeout_seconds)
        except PeerLost:
            # Forget the sidecar: the next task finds or starts another.
            _sidecar.cache_clear()
            raise


class _Rows:
    """Reads the rows of a result task while it runs: the task waits if nobody does."""

    def __init__(self, security: Security, address: str, attempt: AttemptId) -> None:
        self._sink = pa.BufferOutputStream()
        self._count = 0
        self._problem: Exception | None = None
        self._client = security.connect(address)
        self._ticket = flight.Ticket(RESULT_TICKET + encode(attempt))
        self._thread = threading.Thread(target=self._read, name="volley-rows", daemon=True)
        self._thread.start()

    def finish(self, expected: int) -> bytes:
        """All rows as an IPC stream. Call it when the task has ended: then all its rows are on their way."""
        self._thread.join(_ROWS_SECONDS)
        if self._thread.is_alive() or self._problem is not None or self._count != expected:
            raise QueryError(f"only {self._count} of {expected} rows arrived: {self._problem}")
        return self._sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _read(self) -> None:
        try:
            reader = self._client.do_get(self._ticket)
            with pa.ipc.new_stream(self._sink, reader.schema) as writer:
                for chunk in reader:
                    self._count += chunk.data.num_rows
                    writer.write_batch(validate_batch(chunk.data))
        except (flight.FlightError, pa.ArrowException, OSError, QueryError) as error:
            self._problem = error
        finally:
            self._client.close()
