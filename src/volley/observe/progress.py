# SPDX-License-Identifier: Apache-2.0
"""One line on a terminal that says how far a query is, for queries that last.

    volley  4 of 7 stages  12 of 20 tasks  1,234,567 rows  splits: 940 found, 12 queued, 8 running, 920 done  3.2 s

The line is a view of the query's events. It is drawn on the standard error stream, over itself, and removed at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from volley.events import (
    Event,
    QueryFinished,
    QueryStarted,
    SplitCounts,
    SplitProgress,
    StageAbsorbed,
    StageFinished,
    TaskFinished,
)

_EVERY_SECONDS = 0.2


class ProgressLine:
    """A listener for an `EventLog`; draws from a thread that ends with the query.

    Queries that end within `after_seconds` are never seen.
    """

    def __init__(self, stream: TextIO, after_seconds: float = 1.0) -> None:
        self._stream = stream
        self._after_seconds = after_seconds
        self._over = threading.Event()
        self._stages = self._stages_done = self._tasks = self._tasks_done = self._rows = 0
        self._splits: dict[int, SplitCounts] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case QueryStarted():
                self._stages, self._tasks = event.stages, event.tasks
                threading.Thread(target=self._draw, name="volley-progress", daemon=True).start()
            case TaskFinished():
                self._tasks_done += 1
            case StageAbsorbed():
                self._stages_done += 1
            case StageFinished():
                self._stages_done += 1
                self._rows += event.rows
            case SplitProgress():
                # A new dictionary: the thread that draws reads the old one.
                self._splits = self._splits | {event.stage.stage: event.splits}
            case QueryFinished():
                self._over.set()

    def line(self, seconds: float) -> str:
        return (
            f"volley  {self._stages_done} of {self._stages} stages  {self._tasks_done} of {self._tasks} tasks  "
            f"{self._rows:,} rows  {self._fed()}{seconds:.1f} s"
        )

    def _fed(self) -> str:
        stages = self._splits.values()
        if not stages:
            return ""
        found, queued = sum(splits.found for splits in stages), sum(splits.queued for splits in stages)
        running, done = sum(splits.running for splits in stages), sum(splits.done for splits in stages)
        return f"splits: {found:,} found, {queued:,} queued, {running:,} running, {done:,} done  "

    def _draw(self) -> None:
        started = time.monotonic()
        if self._over.wait(self._after_seconds):
            return
        while not self._over.wait(_EVERY_SECONDS):
            self._write(self.line(time.monotonic() - started))
        self._write("")

    def _write(self, text: str) -> None:
        # Carriage return, the text, and clear to the end of the line.
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()


def progress_listeners(setting: str, stream: TextIO | None = None) -> tuple[ProgressLine, ...]:
    """The listener that the option `progress` (auto, on or off) asks for: none, or one."""
    stream = stream or sys.stderr
    wanted = setting == "on" or (setting == "auto" and stream.isatty())
    return (ProgressLine(stream),) if wanted else ()
