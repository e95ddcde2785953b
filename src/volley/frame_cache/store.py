# SPDX-License-Identifier: Apache-2.0
"""Which cached frames this process keeps, and how much memory they take.

    fill      computes the rows of a frame, once, however many threads ask for it
    find      the rows, for a plan that reads them
    retain    drops the frames that Spark no longer caches

Beyond the budget, the frame that was not read for longest goes to disk if its storage level allows that, and is dropped
otherwise: the next query computes it again. A query holds the rows that it reads, so dropped rows end with their last
query. Where workers are other processes, most frames are in their stores, and this process only knows of them.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from volley.frame_cache.cached_batches import CachedBatches, CachedBatchWriter
from volley.process.runtime import Phase, Shared


@dataclass(frozen=True)
class FrameStorage:
    """Where the rows of a frame may be: in memory, up to `budget_bytes` for all frames, and in files of `directory`."""

    memory: bool
    disk: bool
    budget_bytes: int
    directory: Path


@dataclass(frozen=True)
class FrameLabel:
    """The display name of a frame, its table or columns, and its storage level as Spark names it."""

    name: str
    level: str


@dataclass(frozen=True)
class KeptFrame:
    """A frame that is kept. `hits` counts the scans that found its rows here."""

    label: FrameLabel
    rows: int
    memory_bytes: int
    disk_bytes: int
    hits: int


class StoredRows(Protocol):
    """The rows of a frame in the stores of workers in other processes. They are freed when nobody refers to them."""

    @property
    def label(self) -> FrameLabel: ...

    @property
    def rows(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def disk_bytes(self) -> int: ...


@dataclass(frozen=True)
class CacheUsage:
    """What the kept frames take."""

    frames: int
    memory_bytes: int
    disk_bytes: int


@dataclass
class _Entry:
    rows: CachedBatches
    storage: FrameStorage
    label: FrameLabel
    hits: int = 0


class FrameCache:
    """The frames of one process. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._stored: OrderedDict[str, StoredRows] = OrderedDict()
        self._stored_hits: Counter[str] = Counter()
        self._refused: dict[str, str] = {}
        self._filling: dict[str, _Fill] = {}
        # Also of frames that were dropped, while queries read them.
        self._readable: weakref.WeakValueDictionary[str, CachedBatches] = weakref.WeakValueDictionary()

    def find(self, frame: str) -> CachedBatches | None:
        """The rows of a frame that is kept, or that a running query still holds."""
        with self._lock:
            if frame in self._entries:
                self._entries.move_to_end(frame)
                return self._entries[frame].rows
            return self._readable.get(frame)

    def kept(self, frame: str) -> CachedBatches | None:
        """The rows of a frame that is kept."""
        with self._lock:
            entry = self._entries.get(frame)
            return entry.rows if entry else None

    def fill(
        self,
        frame: str,
        schema: pa.Schema,
        storage: FrameStorage,
        compute: Callable[[], Iterator[pa.RecordBatch]],
        *,
        label: FrameLabel,
        places: bool = False,
    ) -> CachedBatches:
        """The rows of a frame. The first thread that asks for them computes them, and the others wait.

        Rows kept without places are computed again if `places` are requested. If `compute` fails, the next waiting
        thread tries.
        """
        with self._one_at_a_time(frame):
            found = self.kept(frame)
            if found is not None and (found.has_places or not places):
                return found
            room_bytes = storage.budget_bytes if storage.memory else 0
            with CachedBatchWriter(schema, storage.directory, room_bytes, places=places) as writer:
                for batch in compute():
                    writer.append(batch)
                rows = writer.finish()
            self._add(frame, _Entry(rows, storage, label))
            return rows

    def stored(self, frame: str) -> StoredRows | None:
        """The rows of a frame that workers keep."""
        with self._lock:
            if frame in self._stored:
                self._stored.move_to_end(frame)
            return self._stored.get(frame)

    def fill_stored(
        self, frame: str, compute: Callable[[], tuple[StoredRows, bool]], budget_bytes: int | None
    ) -> StoredRows:
        """The rows of a frame that workers keep. One thread computes them, and the others wait.

        `compute` also says whether they may be kept. All frames together take `budget_bytes` of the workers' memory;
        beyond that, the one that was not read for longest is dropped.
        """
        with self._one_at_a_time(frame):
            if (found := self.stored(frame)) is not None:
                return found
            rows, is_kept = compute()
            if is_kept:
                self._keep_stored(frame, rows, budget_bytes)
            return rows

    def forget_stored(self, frame: str, rows: StoredRows) -> None:
        """Drop rows that were lost, unless they were computed again already."""
        with self._lock:
            if self._stored.get(frame) is rows:
                del self._stored[frame]

    def _keep_stored(self, frame: str, rows: StoredRows, budget_bytes: int | None) -> None:
        dropped = []  # freed outside of the lock
        with self._lock:
            self._stored[frame] = rows
            while budget_bytes is not None and budget_bytes < sum(
                item.memory_bytes for item in self._stored.values()
            ):
                dropped.append(self._stored.popitem(last=False))

    def count_hit(self, frame: str) -> None:
        """Note that a scan has found the rows of a frame."""
        with self._lock:
            if frame in self._entries:
                self._entries[frame].hits += 1
            elif frame in self._stored:
                self._stored_hits[frame] += 1

    def frames(self) -> list[KeptFrame]:
        """What is kept, the frame that was read last first."""
        with self._lock:
            entries = list(reversed(self._entries.values()))
            return [
                KeptFrame(
                    entry.label,
                    entry.rows.rows,
                    0 if entry.rows.on_disk else entry.rows.size_bytes,
                    entry.rows.size_bytes if entry.rows.on_disk else 0,
                    entry.hits,
                )
                for entry in entries
            ] + [
                KeptFrame(rows.label, rows.rows, rows.memory_bytes, rows.disk_bytes, self._stored_hits[frame])
                for frame, rows in reversed(self._stored.items())
            ]

    def refuse(self, frame: str, reason: str) -> None:
        """Note why the rows of a frame are left to Spark."""
        with self._lock:
            self._refused[frame] = reason

    def refusal(self, frame: str) -> str | None:
        with self._lock:
            return self._refused.get(frame)

    def retain(self, frames: Collection[str]) -> None:
        """Drop all other frames."""
        with self._lock:
            for frame in self._entries.keys() - frames:
                del self._entries[frame]
            stored = [self._stored.pop(frame) for frame in self._stored.keys() - frames]
            for frame in self._stored_hits.keys() - frames:
                del self._stored_hits[frame]
            for frame in self._refused.keys() - frames:
                del self._refused[frame]
        # Workers are told outside of the lock.
        stored.clear()

    def close(self) -> None:
        self.retain(())

    def usage(self) -> CacheUsage:
        with self._lock:
            rows = [entry.rows for entry in self._entries.values()]
            stored = list(self._stored.values())
        return CacheUsage(
            len(rows) + len(stored),
            sum(item.size_bytes for item in rows if not item.on_disk)
            + sum(item.memory_bytes for item in stored),
            sum(item.size_bytes for item in rows if item.on_disk) + sum(item.disk_bytes for item in stored),
        )

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self._stored and not self._refused

    def _add(self, frame: str, entry: _Entry) -> None:
        with self._lock:
            self._readable[frame] = entry.rows
            if entry.rows.on_disk and not entry.storage.disk:
                return  # its storage level allows memory only, and there is too little
            self._entries[frame] = entry
            self._entries.move_to_end(frame)
        self._make_room(entry.storage.budget_bytes)

    def _make_room(self, budget_bytes: int) -> None:
        while (found := self._oldest_beyond(budget_bytes)) is not None:
            frame, entry = found
            # Writing takes a while, and other frames are read meanwhile.
            moved = entry.rows.move_to_disk(entry.storage.directory) if entry.storage.disk else None
            with self._lock:
                if self._entries.get(frame) is not entry:
                    continue
                if moved is None:
                    del self._entries[frame]
                else:
                    self._entries[frame] = replace(entry, rows=moved)
                    self._entries.move_to_end(frame, last=False)
                    self._readable[frame] = moved

    def _oldest_beyond(self, budget_bytes: int) -> tuple[str, _Entry] | None:
        """The least recently read frame in memory, if the frames together exceed the budget."""
        with self._lock:
            held = [(frame, entry) for frame, entry in self._entries.items() if not entry.rows.on_disk]
            excess = sum(entry.rows.size_bytes for _, entry in held) > budget_bytes
            return held[0] if held and excess else None

    @contextmanager
    def _one_at_a_time(self, frame: str) -> Iterator[None]:
        with self._lock:
            fill = self._filling.setdefault(frame, _Fill())
            fill.threads += 1
        try:
            with fill.lock:
                yield
        finally:
            with self._lock:
                fill.threads -= 1
                if not fill.threads:
                    self._filling.pop(frame, None)


class _Fill:
    """Threads that compute a frame, or wait for the one that does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0


_shared: Shared[None, FrameCache] = Shared(Phase.STORES, close=FrameCache.close)


def frame_cache() -> FrameCache:
    """The cache of this process."""
    return _shared.get(None, FrameCache)
