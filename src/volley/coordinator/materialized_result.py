# SPDX-License-Identifier: Apache-2.0
"""The client's end of a query whose rows stay in the stores, where others read them."""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from volley.cancellation import CancellationToken
from volley.coordinator.manifest import Manifest
from volley.coordinator.result import GRACE_SECONDS, ResultQueue
from volley.errors import DeadlineExceeded, QueryError
from volley.events import Event, EventLog
from volley.ids import QueryId


class MaterializedResult:
    """Blocks that are there until `close`, or until this is dropped, the query cancelled or its deadline passed."""

    def __init__(
        self,
        query: QueryId,
        news: ResultQueue,
        run: Future[None],
        token: CancellationToken,
        deadline: float,
        events: EventLog,
    ) -> None:
        self.query = query
        self._news = news
        self._run = run
        self._token = token
        self._deadline = deadline
        self._events = events
        weakref.finalize(self, token.finish)

    def manifest(self) -> Manifest:
        """Where everything is. Waits for the stages to finish; raises what made them fail. To be asked once."""
        try:
            found = self._news.get(self._deadline + GRACE_SECONDS - time.monotonic())
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
        raise found if isinstance(found, QueryError) else QueryError(f"query {self.query} gave nothing.")

    def end(self) -> QueryError | None:
        """Why it ended before it was closed; None when it did not. To be asked before `close`."""
        try:
            found = self._news.get(0)
        except queue.Empty:
            return None
        return found if isinstance(found, QueryError) else None

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call this, which must not block, when somebody cancels the query."""
        self._token.on_fire(lambda: callback() if self._token.cancelled else None)

    def close(self) -> None:
        """Nobody reads any more: free everything, and wait until that is done. May be called again."""
        self._token.finish()
        try:
            self._run.result(timeout=GRACE_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded(f"query {self.query} did not stop when it was told to.") from None

    @property
    def events(self) -> tuple[Event, ...]:
        """What has happened so far; complete after `close`."""
        return self._events.events
