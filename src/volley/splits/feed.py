# SPDX-License-Identifier: Apache-2.0
"""From discovery to the tasks: a bounded window of splits, and a record of who took which.

    source.splits() --> [ window: so many splits, so many bytes ] --> take(task) --> ledger of the task --> attempt
      own thread         largest first, near ones before that        on the loop

Discovery waits while the window is full, a task while it is empty. Whoever asks gets: a slow task asks less often, so
work goes where there is room for it. What was taken stands in the task's ledger before it leaves, so every attempt at
the task reads exactly that, and the committed result has each split once.
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
from volley.splits.ledger import Ledger
from volley.splits.source import Estimate, Split, SplitSource

WINDOW_SPLITS = 4096
WINDOW_BYTES = 16 * 2**20
# A split says what to read; one that is larger than this is the data itself.
MAX_SPLIT_BYTES = 8 * 2**20
_ANSWER_BYTES = 2**20
# A source that has been told to stop is given this long; then the query goes on without it.
_STOP_SECONDS = 1.0


@dataclass(frozen=True)
class Share:
    """What an attempt is given: splits, the place behind them in its task's ledger, and whether that is the end."""

    splits: tuple[bytes, ...]
    after: int
    over: bool


class Feed:
    """The splits of one scan. Lives on the event loop that made it; the source runs on a thread of its own."""

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
        """Begin discovery, once."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._discover, name=f"volley-discovery-{self.name}", daemon=True
            )
            self._thread.start()

    async def stop(self) -> None:
        """End discovery, wherever it is. What was taken can still be read again."""
        thread, source = self._thread, self._source
        if not self._window.close():
            return

        def end() -> None:
            _quietly(source.close)
            if thread is not None:
                thread.join(_STOP_SECONDS)

        # On a thread of its own: closing is the source's code, and may take as long as it likes.
        closing = threading.Thread(target=end, name=f"volley-close-{self.name}", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _STOP_SECONDS)

    def forget(self) -> None:
        """Let go of everything that was recorded."""
        for ledger in self._ledgers.values():
            ledger.close()

    async def wait_discovered(self) -> None:
        """Returns when discovery has ended; raises SourceError, with its cause, as soon as it fails."""
        while not self._window.ended:
            await self._change()
        self._raise()

    def _discover(self) -> None:
        error: BaseException | None = None
        try:
            for split in _iterated(self._source.splits(), self._window):
                if not self._window.put(_checked(split, self.name), self._tell):
                    break
        except BaseException as failure:
            error = failure
        by_itself = self._window.end(error)
        self._tell()
        if by_itself:
            _quietly(self._source.close)

    def _tell(self) -> None:
        """From the discovery thread: something has changed."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            self._window.close()  # the loop is gone, and with it whoever wanted splits

    # --------------------------------------------------------------------------------------- taking

    async def take(self, task: int, after: int, credits: int, host: str = "", tasks: int = 1) -> Share:
        """Up to `credits` splits for an attempt at `task` that has read its ledger up to `after`.

        Waits until there is one. `tasks` is how many share the feed: near its end nobody gets more than a share.
        """
        ledger = self._ledgers.setdefault(task, Ledger())
        while True:
            if not ledger.is_end(after):
                splits, after = ledger.read(after, credits, _ANSWER_BYTES)
                return Share(splits, after, ledger.closed and ledger.is_end(after))
            if ledger.closed:
                return Share((), after, True)
            self._raise()
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
                    await self._change()
                finally:
                    self._waiting -= 1

    def record_read(self, task: int, splits: int) -> None:
        """An attempt at the task says how many splits it has read. One that begins again has read none."""
        self._read[task] = splits

    def commit(self, task: int) -> None:
        """An attempt at the task has won: whoever repeats it reads what is in its ledger, and no more."""
        self._ledgers.setdefault(task, Ledger()).closed = True
        self._committed.add(task)

    async def wait_for_surplus(self, tasks: int) -> bool:
        """Waits until there is work for more than `tasks`: none waits for a split, and more are queued than those
        that are about to start will ask for. False: discovery ended, and nothing is queued.
        """
        while True:
            self._raise()
            if not self._waiting and self._window.queued > tasks - len(self._ledgers):
                return True
            if (self._window.ended or self._window.closed) and not self._window.queued:
                return False
            await self._change()

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

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise(self) -> None:
        error = self._window.error
        if isinstance(error, VolleyError):
            raise error
        if error is not None:
            raise SourceError(self.name, error) from error


class _Window:
    """Splits between discovery and the tasks. Its methods may be called from any thread."""

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

    def put(self, split: Split, tell: Callable[[], None]) -> bool:
        """Add a split, when there is room. False: nobody wants any more."""
        with self._room:
            while not self.closed and not self._has_room():
                self._room.wait()
            if self.closed:
                return False
            was_empty = not self._heap
            # The largest first, and of equal ones the one that was found first.
            heapq.heappush(self._heap, (-(split.size_bytes or 0), self.found, split))
            self._held_bytes += len(split.payload)
            self._with_hosts += bool(split.hosts)
            self.found += 1
            self.found_bytes += split.size_bytes or 0
        if was_empty:
            tell()
        return True

    def take(self, splits: int, host: str) -> list[Split]:
        with self._room:
            taken = [self._pop(host) for _ in range(min(splits, len(self._heap)))]
            if taken:
                self._room.notify_all()
        return taken

    def end(self, error: BaseException | None) -> bool:
        """Discovery is over. Whether it ended by itself; otherwise whoever closed the window closes the source."""
        with self._room:
            self.ended = True
            self.error = None if self.closed else error
            self.complete = not self.closed and error is None
            return not self.closed

    def close(self) -> bool:
        """Refuse what comes. Whether discovery was still under way."""
        with self._room:
            under_way = not self.ended and not self.closed
            self.closed = True
            self._room.notify_all()
        return under_way

    def _has_room(self) -> bool:
        return len(self._heap) < self._limit_splits and self._held_bytes < self._limit_bytes

    def _pop(self, host: str) -> Split:
        place = self._near(host) if self._with_hosts and host else 0
        if place == 0:
            split = heapq.heappop(self._heap)[2]
        else:
            split = self._heap.pop(place)[2]
            heapq.heapify(self._heap)
        self._held_bytes -= len(split.payload)
        self._with_hosts -= bool(split.hosts)
        return split

    def _near(self, host: str) -> int:
        near = [(item[:2], place) for place, item in enumerate(self._heap) if host in item[2].hosts]
        return min(near)[1] if near else 0


def _checked(split: Any, name: str) -> Split:
    if not isinstance(split, Split) or not isinstance(split.payload, bytes):
        what = (
            f"a Split of {type(split.payload).__name__}" if isinstance(split, Split) else type(split).__name__
        )
        raise TypeError(f"it yielded {what} where a Split of bytes was expected")
    if len(split.payload) > MAX_SPLIT_BYTES:
        raise ValueError(
            f"it yielded a split of {len(split.payload):,} bytes; a split says what to read and has {MAX_SPLIT_BYTES:,}"
            " at most"
        )
    return split


def _iterated(splits: Any, window: _Window) -> Iterator[Any]:
    """Plain and async iterators alike, on this thread."""
    if not isinstance(splits, AsyncIterator):
        yield from splits
        return
    # One event loop for the whole iteration: what the source opened on it stays usable.
    with asyncio.Runner() as runner:
        try:
            while not window.closed and (split := runner.run(_next(splits))) is not _END:
                yield split
        finally:
            if hasattr(splits, "aclose"):
                runner.run(splits.aclose())


_END = object()


async def _next(splits: AsyncIterator[Any]) -> Any:
    return await anext(splits, _END)


def _quietly(close: Callable[[], None]) -> None:
    """Nobody waits for more splits: what closing their source says cannot change the result any more."""
    try:
        close()
    except Exception:
        return
