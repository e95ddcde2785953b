# SPDX-License-Identifier: Apache-2.0
"""Callbacks at the start and the end of every attempt that a worker runs, for programs that embed Volley.

A program adds its own with `add_listener`, which suits embedded sessions. In daemons and in Spark's executors, packages
declare them as entry points of the group `volley.task_listeners`: each names a factory without arguments.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol

from volley.events import TaskMetrics
from volley.ids import AttemptId
from volley.plugins import LISTENERS, installed, load
from volley.rpc.messages import Failure, TaskDone, TaskFailure

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskStart:
    """An attempt begins to run on `worker`."""

    worker: str
    query: str
    stage: int
    task: int
    attempt: int


@dataclass(frozen=True)
class TaskEnd:
    """An attempt has ended. `code` says why it failed; `metrics` are those of one that finished."""

    start: TaskStart
    outcome: Literal["finished", "failed", "cancelled"]
    code: str | None = None
    metrics: TaskMetrics | None = None


class TaskListener(Protocol):
    """Called on the event loop of the worker: it must return at once. What it raises is logged and ignored.

    Each attempt is started once and ended once, in this order. Nothing of the data is passed.
    """

    def task_started(self, start: TaskStart) -> None: ...

    def task_ended(self, end: TaskEnd) -> None: ...


_lock = threading.Lock()
_added: list[TaskListener] = []


def add_listener(listener: TaskListener) -> None:
    """Tell `listener` of the attempts that begin in this process from now on."""
    with _lock:
        _added.append(listener)


def remove_listener(listener: TaskListener) -> None:
    """Tell it nothing more. Does nothing if it was not added."""
    with _lock:
        if listener in _added:
            _added.remove(listener)


def tell_started(worker: str, attempt: AttemptId) -> TaskStart:
    """Tell all listeners that an attempt begins."""
    task = attempt.task
    start = TaskStart(worker, str(attempt.query), task.stage.stage, task.task, attempt.attempt)
    _tell(lambda listener: listener.task_started(start))
    return start


def tell_ended(start: TaskStart, outcome: TaskDone | TaskFailure) -> None:
    """Tell all listeners how an attempt ended."""
    if isinstance(outcome, TaskDone):
        end = TaskEnd(start, "finished", metrics=outcome.metrics)
    else:
        is_cancelled = outcome.failure is Failure.CANCELLED
        end = TaskEnd(start, "cancelled" if is_cancelled else "failed", outcome.code)
    _tell(lambda listener: listener.task_ended(end))


def _tell(call: Callable[[TaskListener], None]) -> None:
    with _lock:
        listeners = [*_installed(), *_added]
    for listener in listeners:
        try:
            call(listener)
        except Exception:
            _log.exception("a task listener failed")


@cache
def _installed() -> tuple[TaskListener, ...]:
    found: list[TaskListener] = []
    for plugin in installed(LISTENERS):
        try:
            found.append(load(LISTENERS, plugin.name)())
        except Exception:
            # A broken listener must not fail tasks.
            _log.exception("the task listener %s cannot be loaded", plugin)
    return tuple(found)
