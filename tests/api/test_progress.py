# SPDX-License-Identifier: Apache-2.0
"""The progress line: on terminals, for queries that last, and gone when they end."""

from __future__ import annotations

import io
import threading

import pytest

from volley.events import (
    Event,
    QueryFinished,
    QueryStarted,
    SplitCounts,
    SplitProgress,
    StageFinished,
    StageStarted,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
)
from volley.ids import QueryId, StageId
from volley.observe.progress import ProgressLine, progress_listeners, write_to
from volley.testing.contracts import attempt_id

QUERY = QueryId("q")
STORY: list[Event] = [
    QueryStarted(QUERY, 2, 4),
    StageStarted(StageId(QUERY, 0), 3, 3),
    TaskProgress(attempt_id(0), 5, 500),
    TaskProgress(attempt_id(0), 10, 1024),
    TaskProgress(attempt_id(1), 20, 1024),
    TaskFinished(attempt_id(0), TaskMetrics(10, 80, 0.1)),
    TaskFinished(attempt_id(1), TaskMetrics(10, 80, 0.1)),
    StageFinished(StageId(QUERY, 0), 12_345, 160, 0.1),
]


class Terminal(io.StringIO):
    def __init__(self, *, interactive: bool = True) -> None:
        super().__init__()
        self.interactive = interactive
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return self.interactive

    def flush(self) -> None:
        if "stages" in self.getvalue():
            self.drawn.set()


def drawing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "volley-progress"]


def test_the_line_is_drawn_and_then_removed() -> None:
    terminal = Terminal()
    line = ProgressLine(write_to(terminal), lambda: 4096, after_seconds=0)
    for event in STORY:
        line(event)
    assert terminal.drawn.wait(120)
    line(QueryFinished(QUERY, 1.0, None))
    for thread in drawing_threads():
        thread.join(120)
    assert "1 of 2 stages  2 of 4 tasks  read 30 rows, 2.0 KB of 4.0 KB (50%)" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_short_query_is_never_seen() -> None:
    terminal = Terminal()
    line = ProgressLine(write_to(terminal), after_seconds=60)
    for event in [*STORY, QueryFinished(QUERY, 0.1, None)]:
        line(event)
    for thread in drawing_threads():
        thread.join(120)
    assert terminal.getvalue() == ""
    assert not drawing_threads()


@pytest.mark.parametrize(
    ("setting", "interactive", "wanted"),
    [("auto", True, 1), ("auto", False, 0), ("on", False, 1), ("off", True, 0)],
)
def test_who_gets_a_line(setting: str, interactive: bool, wanted: int) -> None:
    assert len(progress_listeners(setting, stream=Terminal(interactive=interactive))) == wanted


def test_splits_of_all_stages_are_in_the_line() -> None:
    line = ProgressLine(write_to(Terminal()), after_seconds=60)
    assert "splits" not in line.line(1.0)
    for stage, splits in ((0, (5, 4, 1, 0)), (0, (1000, 100, 50, 850)), (1, (10, 3, 2, 5))):
        line(SplitProgress(StageId(QUERY, stage), SplitCounts(*splits)))
    assert "  splits: 1,010 found, 103 queued, 52 running, 855 done  1.0 s" in line.line(1.0)
