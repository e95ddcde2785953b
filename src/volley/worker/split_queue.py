# SPDX-License-Identifier: Apache-2.0
"""Splits on their way from the coordinator to the threads that read them.

    reader thread: take()  ->  none left here: ask for more (SplitRequest)  ...  give(SplitBatch)  ->  a payload

A thread that takes the last split asks for more, so that they arrive while it reads. It asks for as many as the
task gets through in a quarter of a second: one where a split takes long, many where they are tiny.
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
    """The attempt is over: nobody wants what this thread reads."""


class SplitQueues:
    """What one attempt receives from its feeds. Made and given to on the worker's loop, taken from by threads."""

    def __init__(self, attempt: AttemptId, ask: Callable[[SplitRequest], None]) -> None:
        self._attempt = attempt
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._by_feed: dict[int, SplitQueue] = {}

    def open(self, feed: int) -> SplitQueue:
        """Read a feed from its beginning. A second run of the attempt opens it again."""

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
        """No answer will come: whoever takes from the feed gets this error."""
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
        """The next split, when it comes; None after the last. Raises `Stopped` when the run is over, or what failed."""
        with self._changed:
            while not self._payloads and not self._over and not self._closed and not self._error:
                self._ask_for_more()
                # Ends with an answer or with `close`, by which every run ends.
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

    def has_read(self) -> None:
        """A split that was taken has been read to its end."""
        with self._changed:
            self._read += 1

    def give(self, splits: SplitBatch) -> None:
        with self._changed:
            # What a run before this one asked for may arrive late.
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
    """What a task asks for that has read so many splits in this time.

    Not so many as it has been given: the largest come first, and nobody must hoard them before having read one.
    """
    return max(1, min(_MAX_CREDITS, int(read / max(seconds, 1e-3) * _AHEAD_SECONDS)))
