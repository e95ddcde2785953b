# SPDX-License-Identifier: Apache-2.0
"""The client's handle of a query whose result stays in the shuffle stores for others to read."""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from volley.cancellation import CancellationToken
from volley.coordinator.manifest import Manifest
from volley.coordinator.result import GRACE_SECONDS, ResultQueue, wait_until_stopped
from volley.errors import DeadlineExceeded, QueryError
from volley.events import Event, EventLog
from volley.ids import QueryId


class MaterializedResult:
    """Blocks that exist until `close`, until this object is dropped, or until the query is cancelled or times out."""

    def __init__(
        self,
        query: QueryId,
        result_queue: ResultQueue,
        run: Future[None],
        token: CancellationToken,
        deadline: float,
        events: EventLog,
    ) -> None:
        self.query = query
        self._queue = result_queue
        self._run = run
        self._token = token
        self._deadline = deadline
        self._events = events
        weakref.finalize(self, token.finish)

    def manifest(self) -> Manifest:
        """The location of every block. Waits for the stages to finish, and raises their error. Call it once."""
        try:
            found = self._queue.get(self._deadline + GRACE_SECONDS - time.monotonic())
        except queue.Empty:
            self._token.cancel("its deadline passed")
            raise DeadlineExceeded(f"query {self.query} did not stop at its deadline.") from None
        except BaseException:
            self._token.cancel("interrupted")
            self.close()
            raise
        if isinstance(found, Manifest):
            return found
        self.close()
        raise (
            found if isinstance(found, QueryError) else QueryError(f"query {self.query} returned no output.")
        )

    def early_end(self) -> QueryError | None:
        """Why the query ended early, or None if it did not. Call it before `close`."""
        try:
            found = self._queue.get(0)
        except queue.Empty:
            return None
        return found if isinstance(found, QueryError) else None

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which must not block, when the query is cancelled."""
        self._token.on_fire(lambda: callback() if self._token.cancelled else None)

    def close(self) -> None:
        """Free the blocks and wait until that is done. Idempotent."""
        self._token.finish()
        wait_until_stopped(self._run, self.query)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events so far; complete after `close`."""
        return self._events.events
