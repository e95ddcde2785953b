# SPDX-License-Identifier: Apache-2.0
"""Queries of Connect clients that Volley may answer, and their responses until the client has them.

    running --+--> answered    the responses are here; the client reads, reattaches and releases
              +--> failed      a status for the client
              +--> delegated   Spark's server answers; from now on it knows the operation, and we pass on

A reattachable operation outlives the stream on which it was asked for, as it does in Spark's server.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from volley.connect_server.statuses import POSITION_NOT_AVAILABLE, POSITION_NOT_FOUND, Failure, Status
from volley.errors import QueryCancelled


class State(Enum):
    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"
    DELEGATED = "delegated"


@dataclass(frozen=True)
class OperationKey:
    user: str
    session: str
    operation: str


class DelegationFailed(Exception):
    """Spark's server failed, and has told the client so."""


# Makes the bytes of a response, which get its id. Made when the client is ready for them.
Encode = Callable[[str], bytes]


class Operation:
    """One query. Its own thread answers it, threads of the gRPC server read, and any of them may interrupt it.

    `request` is the serialized ExecutePlanRequest, `server_session` the server's own id of the session. `stop_work`
    stops what runs for it natively or in Spark's jobs; it must not block.
    """

    def __init__(
        self,
        key: OperationKey,
        request: bytes,
        *,
        server_session: str = "",
        tags: frozenset[str] = frozenset(),
        reattachable: bool = False,
        stop_work: Callable[[], None] = lambda: None,
    ) -> None:
        self.key = key
        self.request = request
        self.server_session = server_session
        self.tags = tags
        self.reattachable = reattachable
        self._stop_work = stop_work
        self._changed = threading.Condition()
        self._state = State.RUNNING
        self._interrupted = False
        self._failure: Status | None = None
        self._responses: deque[tuple[str, Encode]] = deque()
        self._released = 0
        self._released_id: str | None = None
        self._readers = 0
        self._unread_since = time.monotonic()
        self._is_sent = False
        # What became of the delegation: None while it lasts, then an error's text, or "" for success.
        self._delegation: str | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def interrupted(self) -> bool:
        return self._interrupted

    # ------------------------------------------------------------------------------------------- its own thread

    def check_interrupted(self) -> None:
        """Raise QueryCancelled if somebody has interrupted it."""
        if self._interrupted:
            raise QueryCancelled("the operation was interrupted.")

    def answer(self, responses: list[Encode]) -> None:
        """All responses, in order."""
        with self._changed:
            self._responses.extend((str(uuid.uuid4()), encode) for encode in responses)
            self._move(State.ANSWERED)

    def fail(self, status: Status) -> None:
        with self._changed:
            self._failure = status
            self._move(State.FAILED)

    def hand_over(self) -> None:
        """Let Spark's server answer."""
        with self._changed:
            self._move(State.DELEGATED)

    def delegate(self) -> None:
        """Let Spark's server answer, and wait for the end. Raises DelegationFailed if it failed."""
        self.check_interrupted()
        with self._changed:
            self._move(State.DELEGATED)
            self._changed.wait_for(
                lambda: self._delegation is not None or (self._interrupted and not self._readers)
            )
        if self._delegation is None:
            self.check_interrupted()
        if self._delegation:
            raise DelegationFailed(self._delegation)

    def _move(self, state: State) -> None:
        self._state = state
        self._changed.notify_all()

    # ------------------------------------------------------------------------------------------- the client

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A client reads during this block, so the operation is not abandoned."""
        with self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._unread_since = time.monotonic()
                self._changed.notify_all()

    def responses(
        self, after: str | None, is_wanted: Callable[[], bool], seconds: float | None
    ) -> Iterator[bytes]:
        """The responses that follow the one with the id `after`, as they come.

        Ends after the last one, when Spark's server takes over, when the client has gone, or after `seconds`.
        Raises Failure if the operation failed, or if the position is unknown.
        """
        position = self._position_after(after)
        deadline = None if seconds is None else time.monotonic() + seconds
        while (item := self._wait(position, is_wanted, deadline)) is not None:
            id, encode = item
            yield encode(id)
            position += 1
            # After the first one, so that every stream is a step ahead.
            if deadline is not None and time.monotonic() >= deadline:
                return

    def wake(self) -> None:
        """Let readers check again whether their client is still there."""
        with self._changed:
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._interrupted = True
            is_running = self._state is State.RUNNING
            self._changed.notify_all()
        if is_running:
            self._stop_work()

    def release_until(self, id: str) -> None:
        """Forget the responses up to and including this one; unknown ids change nothing."""
        with self._changed:
            if id not in (known for known, _ in self._responses):
                return
            while self._released_id != id:
                self._released_id, _ = self._responses.popleft()
                self._released += 1

    def send(self) -> bool:
        """Call it before each request to Spark's server. Returns whether this is the first one."""
        with self._changed:
            first, self._is_sent = not self._is_sent, True
            return first

    def end_delegation(self, error: str = "") -> None:
        """Spark's server has sent its last response."""
        with self._changed:
            self._delegation = error
            self._changed.notify_all()

    def unread_seconds(self) -> float:
        """Seconds since the last client stopped reading; 0 while one reads."""
        with self._changed:
            return 0.0 if self._readers else time.monotonic() - self._unread_since

    def _position_after(self, after: str | None) -> int:
        with self._changed:
            if after is None:
                if self._released:
                    raise Failure(POSITION_NOT_AVAILABLE)
                return 0
            if after == self._released_id:
                return self._released
            for index, (id, _) in enumerate(self._responses):
                if id == after:
                    return self._released + index + 1
        raise Failure(POSITION_NOT_FOUND)

    def _wait(
        self, position: int, is_wanted: Callable[[], bool], deadline: float | None
    ) -> tuple[str, Encode] | None:
        def is_over() -> bool:
            return self._state is not State.RUNNING or not is_wanted()

        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(is_over, left) or not is_wanted():
                return None
            if self._failure is not None:
                raise Failure(self._failure)
            if self._state is State.DELEGATED:
                return None
            index = position - self._released
            if index < 0:
                raise Failure(POSITION_NOT_AVAILABLE)
            return self._responses[index] if index < len(self._responses) else None


class Operations:
    """The operations of all sessions. Nothing is kept of those that are released or abandoned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[OperationKey, Operation] = {}

    def add(self, operation: Operation) -> bool:
        """False if there is one with this key."""
        with self._lock:
            return self._operations.setdefault(operation.key, operation) is operation

    def get(self, key: OperationKey) -> Operation | None:
        with self._lock:
            return self._operations.get(key)

    def remove(self, operation: Operation) -> None:
        """Forget it, and stop it if it runs."""
        with self._lock:
            self._operations.pop(operation.key, None)
        if operation.state in (State.RUNNING, State.DELEGATED):
            operation.interrupt()

    def of_session(self, user: str, session: str) -> list[Operation]:
        with self._lock:
            return [
                operation
                for key, operation in self._operations.items()
                if (key.user, key.session) == (user, session)
            ]

    def all(self) -> list[Operation]:
        with self._lock:
            return list(self._operations.values())

    def sweep(self, unread_seconds: float) -> None:
        """Remove operations that no client has read for longer than this."""
        for operation in self.all():
            if operation.unread_seconds() > unread_seconds:
                self.remove(operation)
