# SPDX-License-Identifier: Apache-2.0
"""Hands discovered splits to tasks: a bounded window, and a ledger of the splits of each task.

    source.splits() --> [ window: limited splits and bytes ] --> take(task) --> ledger of the task --> attempt
      own thread          local splits first, then largest        on the loop

Discovery waits while the window is full, a task while it is empty. Tasks pull: a slow one asks less often, so work goes
where there is capacity. A split is in the task's ledger before it is handed out. So every attempt at the task reads
exactly the same splits, and the committed result contains each split once.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from volley.errors import SourceError, VolleyError
from volley.events import FeedStatus
from volley.python_versions import Runner
from volley.splits.ledger import Ledger
from volley.splits.source import Estimate, Split, SplitSource

WINDOW_SPLITS = 4096
WINDOW_BYTES = 16 * 2**20
# A split describes what to read. One that is larger than this probably contains the data itself.
MAX_SPLIT_BYTES = 8 * 2**20
_ANSWER_BYTES = 2**20
# How long a source may take to stop before the query continues without it.
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class Share:
    """The splits for one request, the ledger position behind them, and whether that is the end."""

    splits: tuple[bytes, ...]
    after: int
    over: bool


class Feed:
    """The splits of one scan. Lives on the event loop that created it; the source runs on its own thread."""

    def __init__(
        self,
        name: str,
        source: SplitSource,
        *,
        window_splits: int = WINDOW_SPLITS,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.name = name
        self._source = source
        self._window = _Window(window_splits, window_bytes)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._ledgers: dict[int, Ledger] = {}
        self._committed: set[int] = set()
        self._read: dict[int, int] = {}
        self._waiting = 0
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------------ discovery

    def start(self) -> None:
        """Start discovery, unless it has been started."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._discover, name=f"volley-discovery-{self.name}", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        """Stop discovery. Splits that were handed out can still be read again."""
        thread, source = self._thread, self._source
        if not self._window.close():
            return

        def end() -> None:
            _close_quietly(source.close)
            if thread is not None:
                thread.join(_STOP_SECONDS)

        # On its own thread: close() is the source's code and may take any time.
        closing = threading.Thread(target=end, name=f"volley-close-{self.name}", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _STOP_SECONDS)

    def forget(self) -> None:
        """Free all ledgers."""
        for ledger in self._ledgers.values():
            ledger.close()

    async def wait_discovered(self) -> None:
        """Wait for the end of discovery. Raises SourceError, with its cause, as soon as it fails."""
        while not self._window.ended:
            await self._wait_for_change()
        self._raise_error()

    def _discover(self) -> None:
        error: BaseException | None = None
        try:
            for split in _iterate(self._source.splits(), self._window):
                if not self._window.put(_check(split, self.name), self._notify):
                    break
        except BaseException as failure:
            error = failure
        by_itself = self._window.end(error)
        self._notify()
        if by_itself:
            _close_quietly(self._source.close)

    def _notify(self) -> None:
        """Notify the loop of a change, from the discovery thread."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            self._window.close()  # the loop is gone, and with it everyone who needs splits

    # --------------------------------------------------------------------------------------- taking

    async def take(self, task: int, after: int, credits: int, host: str = "", tasks: int = 1) -> Share:
        """Up to `credits` splits for an attempt at `task` that has read its ledger up to position `after`.

        Waits until there is one. `tasks` is how many tasks share the feed: none gets more than a fair share of the
        queued splits.
        """
        ledger = self._ledgers.setdefault(task, Ledger())
        while True:
            if not ledger.is_end(after):
                splits, after = ledger.read(after, credits, _ANSWER_BYTES)
                return Share(splits, after, ledger.closed and ledger.is_end(after))
            if ledger.closed:
                return Share((), after, over=True)
            self._raise_error()
            fair = max(1, self._window.queued // (2 * max(1, tasks)))
            if taken := self._window.take(min(credits, fair), host):
                ledger.append(
                    (split.payload for split in taken), sum(split.size_bytes or 0 for split in taken)
                )
                self._changed.set()
            elif self._window.ended or self._window.closed:
                ledger.closed = True
            else:
                self._waiting += 1
                try:
                    await self._wait_for_change()
                finally:
                    self._waiting -= 1

    def record_read(self, task: int, splits: int) -> None:
        """Record how many splits the current attempt at the task has read. A new attempt starts at 0."""
        self._read[task] = splits

    def commit(self, task: int) -> None:
        """Close the ledger of a task that committed: a rerun reads the same splits and no more."""
        self._ledgers.setdefault(task, Ledger()).closed = True
        self._committed.add(task)

    async def wait_for_surplus(self, tasks: int) -> bool:
        """Wait until there is work for more than `tasks` tasks: none of them waits for a split, and more are queued
        than the tasks that have not asked yet. False if discovery ended and nothing is queued.
        """
        while True:
            self._raise_error()
            if not self._waiting and self._window.queued > tasks - len(self._ledgers):
                return True
            if (self._window.ended or self._window.closed) and not self._window.queued:
                return False
            await self._wait_for_change()

    # ------------------------------------------------------------------------------------------ report

    def status(self) -> FeedStatus:
        ledgers = self._ledgers
        tasks = max(ledgers, default=-1) + 1
        by_task = tuple(ledgers[task].splits if task in ledgers else 0 for task in range(tasks))
        done = sum(
            splits if task in self._committed else min(splits, self._read.get(task, 0))
            for task, splits in enumerate(by_task)
        )
        return FeedStatus(
            source=self.name,
            found=self._window.found,
            queued=self._window.queued,
            running=sum(by_task) - done,
            done=done,
            by_task=by_task,
            bytes_by_task=tuple(ledgers[task].size_bytes if task in ledgers else 0 for task in range(tasks)),
            size_bytes=self._window.found_bytes,
            final=self._window.complete,
        )

    def estimate(self) -> Estimate:
        return self._source.estimate()

    # ---------------------------------------------------------------------------------------------

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_error(self) -> None:
        error = self._window.error
        if isinstance(error, VolleyError):
            raise error
        if error is not None:
            raise SourceError(self.name, error) from error


class _Window:
    """The bounded buffer between discovery and the tasks. Methods may be called from any thread."""

    def __init__(self, limit_splits: int, limit_bytes: int) -> None:
        self._limit_splits = limit_splits
        self._limit_bytes = limit_bytes
        self._heap: list[tuple[int, int, Split]] = []
        self._held_bytes = 0
        self._with_hosts = 0
        self._room = threading.Condition()
        self.found = 0
        self.found_bytes = 0
        self.ended = False
        self.complete = False
        self.closed = False
        self.error: BaseException | None = None

    @property
    def queued(self) -> int:
        return len(self._heap)

    def put(self, split: Split, notify: Callable[[], None]) -> bool:
        """Add a split, waiting for room. False if the window was closed."""
        with self._room:
            while not self.closed and not self._has_room():
                self._room.wait()
            if self.closed:
                return False
            was_empty = not self._heap
            # Largest first; among equals, first found first.
            heapq.heappush(self._heap, (-(split.size_bytes or 0), self.found, split))
            self._held_bytes += len(split.payload)
            self._with_hosts += bool(split.hosts)
            self.found += 1
            self.found_bytes += split.size_bytes or 0
        if was_empty:
            notify()
        return True

    def take(self, splits: int, host: str) -> list[Split]:
        with self._room:
            taken = [self._pop(host) for _ in range(min(splits, len(self._heap)))]
            if taken:
                self._room.notify_all()
        return taken

    def end(self, error: BaseException | None) -> bool:
        """End discovery. True if it ended by itself; otherwise whoever closed the window closes the source."""
        with self._room:
            self.ended = True
            self.error = None if self.closed else error
            self.complete = not self.closed and error is None
            return not self.closed

    def close(self) -> bool:
        """Accept no more splits. Returns whether discovery was still running."""
        with self._room:
            under_way = not self.ended and not self.closed
            self.closed = True
            self._room.notify_all()
        return under_way

    def _has_room(self) -> bool:
        return len(self._heap) < self._limit_splits and self._held_bytes < self._limit_bytes

    def _pop(self, host: str) -> Split:
        place = self._find_local(host) if self._with_hosts and host else 0
        if place == 0:
            split = heapq.heappop(self._heap)[2]
        else:
            split = self._heap.pop(place)[2]
            heapq.heapify(self._heap)
        self._held_bytes -= len(split.payload)
        self._with_hosts -= bool(split.hosts)
        return split

    def _find_local(self, host: str) -> int:
        near = [(item[:2], place) for place, item in enumerate(self._heap) if host in item[2].hosts]
        return min(near)[1] if near else 0


def _check(split: Any, name: str) -> Split:
    if not isinstance(split, Split) or not isinstance(split.payload, bytes):
        what = (
            f"a Split of {type(split.payload).__name__}" if isinstance(split, Split) else type(split).__name__
        )
        raise TypeError(f"it yielded {what} instead of a Split of bytes")
    if len(split.payload) > MAX_SPLIT_BYTES:
        raise ValueError(
            f"it yielded a split of {len(split.payload):,} bytes; a split describes what to read and is at most"
            f" {MAX_SPLIT_BYTES:,} bytes"
        )
    return split


def _iterate(splits: Any, window: _Window) -> Iterator[Any]:
    """Iterate over a plain or an async iterator, on this thread."""
    if not isinstance(splits, AsyncIterator):
        yield from splits
        return
    # Use one event loop for the whole iteration, so that what the source opened on it stays usable.
    with Runner() as runner:
        try:
            while not window.closed and (split := runner.run(_next(splits))) is not _END:
                yield split
        finally:
            if hasattr(splits, "aclose"):
                runner.run(splits.aclose())


_END = object()


async def _next(splits: AsyncIterator[Any]) -> Any:
    return await anext(splits, _END)


def _close_quietly(close: Callable[[], None]) -> None:
    """Close a source and ignore its errors: no more splits are needed, so they cannot change the result."""
    try:
        close()
    except Exception:
        return
