# SPDX-License-Identifier: Apache-2.0
"""The stores of workers in other processes, opened for rows that a query brings along, and freed with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from volley.events import TaskMetrics
from volley.ids import QueryId
from volley.rpc.control import Pushed
from volley.rpc.messages import TaskDone
from volley.transport.base import IngestEndpoint

# For a word with all workers, of which some may be gone.
_RELEASE_SECONDS = 60.0


@dataclass(frozen=True)
class IngestTarget:
    """Where rows of one query come in, under a name of their own, until `release`, which does not wait."""

    query: QueryId
    partitions: int
    ingest_endpoint: IngestEndpoint
    release: Callable[[], Future[None]]


class Ingestion:
    """A target that is opened when it is first needed. Its owner closes it, or is dropped.

    `open_target` gives None where the worker is this process.
    """

    def __init__(self, open_target: Callable[[], IngestTarget | None]) -> None:
        self._open_target = open_target
        self._target: IngestTarget | None = None

    def open(self) -> IngestTarget | None:
        """The same target each time."""
        if self._target is None and (target := self._open_target()) is not None:
            self._target = target
            # An iterator over the rows of a query may be dropped before it has begun.
            self._dropped = weakref.finalize(self, target.release)
            self._dropped.atexit = False  # workers are told otherwise that a driver goes
        return self._target

    def close(self) -> None:
        """Free what the stores hold. May be called again."""
        if self._target is not None and self._dropped.detach():
            self._target.release().result(_RELEASE_SECONDS)


def task_done(said: Pushed) -> TaskDone:
    """What a task that has pushed these rows has done."""
    rows = sum(block.rows for block in said.blocks)
    size_bytes = sum(block.size_bytes for block in said.blocks)
    return TaskDone(said.attempt, said.blocks, TaskMetrics(rows, size_bytes, 0.0), said.holder)
