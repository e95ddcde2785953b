# SPDX-License-Identifier: Apache-2.0
"""Writes the history on a thread of its own, so that a query never waits for a disk.

    query begins    -> watched: after a second, and then about every second, what it has done so far is written
    query ends      -> written as a whole, together with others that ended meanwhile
    process exits   -> what waits is written

If the history cannot be written, that is logged once and fails no query.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

from volley.config import Config
from volley.observe.history_store import HistoryStore, Limits, default_directory
from volley.observe.recorder import QueryRecorder
from volley.process.runtime import Phase, Shared

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_PRUNE_EVERY = 200
_END_SECONDS = 5.0
# If queries end faster than they can be written, some are dropped from the history. Queries never wait.
_MAX_WAITING = 10_000


class HistoryWriter:
    """Writes to one folder, from construction until `close`. May be used from any thread."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self._directory = directory
        self._limits = limits
        self._queue: queue.SimpleQueue[QueryRecorder | threading.Event | None] = queue.SimpleQueue()
        self._live: dict[QueryRecorder, float] = {}
        self._store: HistoryStore | None = None
        self._failed = False
        self._saved = 0
        self._thread = threading.Thread(target=self._run, name="volley-history", daemon=True)
        self._thread.start()

    def put(self, recorder: QueryRecorder) -> None:
        """Call this when a query begins, and again when it has finished."""
        if self._queue.qsize() < _MAX_WAITING:
            self._queue.put(recorder)

    def flush(self) -> None:
        """Wait until everything that was put before is written, but not for ever."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(_END_SECONDS)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        open_ = True
        while open_:
            finished: list[QueryRecorder] = []
            waiting: list[threading.Event] = []
            for item in self._take():
                if item is None:
                    open_ = False
                elif isinstance(item, threading.Event):
                    waiting.append(item)
                elif item.finished:
                    self._live.pop(item, None)
                    finished.append(item)
                else:
                    self._live[item] = time.time() + _EVERY_SECONDS
            # One that has finished since is in the queue again.
            due = [item for item, at in self._live.items() if at <= time.time() and not item.finished]
            for item in due:
                self._live[item] = time.time() + _EVERY_SECONDS
            if finished or due:
                self._write([*due, *finished])
            for event in waiting:
                event.set()
        if self._store is not None:
            self._store.close()

    def _take(self) -> list[QueryRecorder | threading.Event | None]:
        """All pending recorders. Waits for the first one, but only until the running queries are due."""
        items: list[QueryRecorder | threading.Event | None] = []
        with suppress(queue.Empty):
            items.append(self._queue.get(timeout=_EVERY_SECONDS if self._live else None))
            while True:
                items.append(self._queue.get_nowait())
        return items

    def _write(self, recorders: list[QueryRecorder]) -> None:
        try:
            if self._store is None:
                self._store = HistoryStore(self._directory, self._limits)
                self._store.prune()
            self._store.save(recorder.record() for recorder in recorders)
            self._saved += len(recorders)
            if self._saved >= _PRUNE_EVERY:
                self._saved = 0
                self._store.prune()
        except Exception as error:
            # No error may end the thread: later writes may succeed.
            level = logging.DEBUG if self._failed else logging.WARNING
            known = isinstance(error, OSError | sqlite3.Error)
            _log.log(
                level, "the history in %s cannot be written: %s", self._directory, error, exc_info=not known
            )
            self._failed = True


_writers: Shared[tuple[Path, Limits], HistoryWriter] = Shared(Phase.CONNECTIONS, close=HistoryWriter.close)


def history_writer(config: Config) -> HistoryWriter | None:
    """The writer that these options ask for, shared by all sessions of this process; None if there is no history."""
    directory = history_directory(config.history_dir)
    if directory is None:
        return None
    limits = Limits(config.history_max_size, config.history_max_age_days * 86400.0)
    return _writers.get((directory, limits), lambda: HistoryWriter(directory, limits))


def history_directory(option: str) -> Path | None:
    """The folder that `spark.volley.history.dir` names; None if it is `off`."""
    if option == "off":
        return None
    return Path(option).expanduser() if option else default_directory()


def flush_history() -> None:
    """Write what waits to all histories of this process, so that a reader sees it."""
    with _writers.locked() as writers:
        waiting = list(writers.values())
    for writer in waiting:
        writer.flush()
