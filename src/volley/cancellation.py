# SPDX-License-Identifier: Apache-2.0
"""One token per query. Whoever ends the query fires it, and everything that runs for the query stops."""

from __future__ import annotations

import threading
from collections.abc import Callable

from volley.errors import QueryCancelled


class CancellationToken:
    """Fires at most once, from any thread: on an early LIMIT, Ctrl-C, an error and the normal end.

    `cancelled` tells whether someone asked the query to stop (`cancel`), as opposed to the query being over (`finish`).
    A callback runs once, on the thread that fires, or immediately if the token has already fired. It must not block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fired = False
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def fired(self) -> bool:
        return self._fired

    @property
    def cancelled(self) -> bool:
        return self._reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop the query on request."""
        self._fire(reason)

    def finish(self) -> None:
        """End the query because it is over or its rows are no longer wanted. Its resources are released."""
        self._fire(None)

    def on_fire(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._fired:
                self._callbacks.append(callback)
                return
        callback()

    def error(self) -> QueryCancelled:
        return QueryCancelled(f"the query was stopped: {self._reason or 'its result was closed'}.")

    def _fire(self, reason: str | None) -> None:
        with self._lock:
            if self._fired:
                return
            self._fired = True
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
