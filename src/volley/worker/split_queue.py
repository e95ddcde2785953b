# SPDX-License-Identifier: Apache-2.0
"""Queues of splits between the coordinator and the reader threads of a task.

    reader thread: take()  ->  queue empty: ask for more (SplitRequest)  ...  give(SplitBatch)  ->  a payload

The thread that takes the last split asks for more, so that they arrive while it reads. It asks for as many as the task
reads in a quarter of a second: one if splits are large, many if they are tiny.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from volley.ids import AttemptId
from volley.rpc.messages import SplitBatch, SplitRequest

_AHEAD_SECONDS = 0.25
_MAX_CREDITS = 256


class Stopped(Exception):
    """The attempt is over: the reader thread must stop."""


class SplitQueues:
    """The split queues of one attempt. Created and filled on the worker's loop, read by reader threads."""

    def __init__(self, attempt: AttemptId, ask: Callable[[SplitRequest], None]) -> None:
        self._attempt = attempt
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._by_feed: dict[int, SplitQueue] = {}

    def open(self, feed: int) -> SplitQueue:
        """Start reading a feed from its beginning. A second run of the attempt opens it again."""

        def ask(after: int, credits: int, read: int) -> None:
            self._loop.call_soon_threadsafe(
                self._ask, SplitRequest(self._attempt, feed, after, credits, read)
            )

        split_queue = self._by_feed[feed] = SplitQueue(ask)
        return split_queue

    def give(self, splits: SplitBatch) -> None:
        if splits.feed in self._by_feed:
            self._by_feed[splits.feed].give(splits)

    def fail(self, feed: int, error: Exception) -> None:
        """Raise this error in the readers of a feed, because no answer will come."""
        if feed in self._by_feed:
            self._by_feed[feed].fail(error)


class SplitQueue:
    """The splits of one feed for one run of an attempt."""

    def __init__(self, ask: Callable[[int, int, int], None]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._payloads: deque[bytes] = deque()
        self._after = 0
        self._asked = False
        self._read = 0
        self._started = time.monotonic()
        self._over = False
        self._closed = False
        self._error: Exception | None = None

    def take(self) -> bytes | None:
        """Wait for the next split; None after the last. Raises `Stopped` if the run is over, or the feed's error."""
        with self._changed:
            while not self._payloads and not self._over and not self._closed and not self._error:
                self._ask_for_more()
                # Ended by an answer or by `close`, which every run calls.
                self._changed.wait()
            if self._closed:
                raise Stopped
            if self._error is not None:
                raise self._error
            if not self._payloads:
                return None
            payload = self._payloads.popleft()
            if not self._payloads and not self._over:
                self._ask_for_more()
            return payload

    def mark_read(self) -> None:
        """Count a split that was read to its end."""
        with self._changed:
            self._read += 1

    def give(self, splits: SplitBatch) -> None:
        with self._changed:
            # Ignore a late answer to a request of an earlier run.
            if not self._asked or splits.since != self._after:
                return
            self._asked = False
            self._payloads.extend(splits.splits)
            self._after = splits.after
            self._over = splits.over
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ask_for_more(self) -> None:
        if not self._asked:
            self._asked = True
            self._ask(self._after, credits_for(self._read, time.monotonic() - self._started), self._read)


def credits_for(read: int, seconds: float) -> int:
    """How many splits to ask for, given that `read` splits took `seconds`.

    Counts splits read, not received: the largest come first, and a task must not hoard them before it has read one.
    """
    return max(1, min(_MAX_CREDITS, int(read / max(seconds, 1e-3) * _AHEAD_SECONDS)))
