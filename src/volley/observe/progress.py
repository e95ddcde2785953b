# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of long queries: one line on a terminal, or in the cell of a notebook.

    volley  4 of 7 stages  12 of 20 tasks  read 1,234,567 rows, 96.0 MB of 128.0 MB (75%)  3.2 s

The line is a view of the query's events. On a terminal it is drawn on the standard error stream, over itself,
and removed at the end; in a notebook it is a widget, or an output of the cell that is updated, and is gone at the end.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any, TextIO

from volley.events import (
    Event,
    QueryFinished,
    QueryStarted,
    SplitCounts,
    SplitProgress,
    StageAbsorbed,
    StageFinished,
    TaskFinished,
    TaskProgress,
)
from volley.observe.display import shell
from volley.worker.budget import format_size

_EVERY_SECONDS = 0.2
Write = Callable[[str, float | None], None]
"""Shows a line and the share of the input that was read, 0 to 1, if that is known. An empty line removes it."""


class ProgressLine:
    """A listener for an `EventLog`; draws from a thread that ends with the query.

    Queries that end within `after_seconds` show nothing. `input_bytes` tells how much the scans will read at most, 0
    if that is not known; it may take its time and is asked once, on the thread that draws.
    """

    def __init__(
        self, write: Write, input_bytes: Callable[[], int] = lambda: 0, after_seconds: float = 1.0
    ) -> None:
        self._write = write
        self._measure_input = input_bytes
        self._input_bytes = 0
        self._after_seconds = after_seconds
        self._over = threading.Event()
        self._stages = self._stages_done = self._tasks = self._tasks_done = 0
        self._splits: dict[int, SplitCounts] = {}
        self._read: dict[object, TaskProgress] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case QueryStarted():
                self._stages, self._tasks = event.stages, event.tasks
                threading.Thread(target=self._draw, name="volley-progress", daemon=True).start()
            case TaskProgress():
                # A new dictionary, here and below: the thread that draws reads the old one.
                self._read = self._read | {event.attempt: event}
            case TaskFinished():
                self._tasks_done += 1
            case StageAbsorbed() | StageFinished():
                self._stages_done += 1
            case SplitProgress():
                self._splits = self._splits | {event.stage.stage: event.splits}
            case QueryFinished():
                self._over.set()

    def line(self, seconds: float) -> str:
        return (
            f"volley  {self._stages_done} of {self._stages} stages  {self._tasks_done} of {self._tasks} tasks  "
            f"{self._scanned()}{self._fed()}{seconds:.1f} s"
        )

    @property
    def share(self) -> float | None:
        """The share of the input that was read; None if its size is not known. Pruned data is never read."""
        read = sum(task.size_bytes for task in self._read.values())
        return min(1.0, read / self._input_bytes) if self._input_bytes else None

    def _scanned(self) -> str:
        tasks = self._read.values()
        rows, size_bytes = sum(task.rows for task in tasks), sum(task.size_bytes for task in tasks)
        if not rows:
            return ""
        of = f" of {format_size(self._input_bytes)} ({self.share:.0%})" if self._input_bytes else ""
        return f"read {rows:,} rows, {format_size(size_bytes)}{of}  "

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
        self._input_bytes = self._measure_input()
        while not self._over.wait(_EVERY_SECONDS):
            self._write(self.line(time.monotonic() - started), self.share)
        self._write("", None)


def write_to(stream: TextIO) -> Write:
    """Draw on a terminal."""

    def write(line: str, share: float | None) -> None:
        # Carriage return, the text, and clear to the end of the line.
        stream.write(f"\r{line}\x1b[K")
        stream.flush()

    return write


def write_to_cell() -> Write:
    """Draw in the cell of a notebook, with a bar where the share is known."""
    handles: list[Any] = []

    def write(line: str, share: float | None) -> None:
        bar = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
        shown = {"text/plain": line, "text/html": f"{bar}<code>{escape(line)}</code>" if line else ""}
        if handles:
            handles[0].update(shown, raw=True)
        else:
            display = importlib.import_module("IPython.display").display
            handles.append(display(shown, raw=True, display_id=True))

    return write


class CellWidget:
    """Draws in the cell of a notebook with ipywidgets: a bar, if the share is known, and the line."""

    def __init__(self, ipywidgets: Any) -> None:
        self.bar = ipywidgets.FloatProgress(value=0.0, min=0.0, max=1.0, bar_style="info")
        self.label = ipywidgets.Label()
        self.box = ipywidgets.HBox([self.bar, self.label])
        self._is_shown = False

    def __call__(self, line: str, share: float | None) -> None:
        if not line:
            self.box.close()
            return
        self.label.value = line
        self.bar.value = share or 0.0
        self.bar.layout.display = "none" if share is None else None
        if not self._is_shown:
            importlib.import_module("IPython.display").display(self.box)
            self._is_shown = True


def write_to_notebook() -> Write:
    """Draw with ipywidgets if they are installed, else as HTML."""
    try:
        ipywidgets = importlib.import_module("ipywidgets")
    except ImportError:
        return write_to_cell()
    return CellWidget(ipywidgets)


def progress_listeners(
    setting: str, input_bytes: Callable[[], int] = lambda: 0, stream: TextIO | None = None
) -> tuple[ProgressLine, ...]:
    """The listener that the option `progress` (auto, on or off) asks for: none, or one."""
    stream = stream or sys.stderr
    in_notebook = hasattr(shell(), "kernel")
    if setting == "off" or (setting == "auto" and not in_notebook and not stream.isatty()):
        return ()
    return (ProgressLine(write_to_notebook() if in_notebook else write_to(stream), input_bytes),)
