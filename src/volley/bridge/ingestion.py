# SPDX-License-Identifier: Apache-2.0
"""Opens the stores of workers in other processes for rows that a query pushes, and frees them with the query."""

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

# Enough for a call to every worker, some of which may be lost.
_RELEASE_SECONDS = 60.0


@dataclass(frozen=True)
class IngestTarget:
    """Accepts rows of one query, under a query id of their own, until `release`, which does not wait."""

    query: QueryId
    partitions: int
    ingest_endpoint: IngestEndpoint
    release: Callable[[], Future[None]]


class Ingestion:
    """A target that is opened on first use. `open_target` returns None if the worker is this process."""

    def __init__(self, open_target: Callable[[], IngestTarget | None]) -> None:
        self._open_target = open_target
        self._target: IngestTarget | None = None

    def open(self) -> IngestTarget | None:
        """The same target each time."""
        if self._target is None and (target := self._open_target()) is not None:
            self._target = target
            # A row iterator may be dropped before its first row.
            self._dropped = weakref.finalize(self, target.release)
            self._dropped.atexit = False  # at exit, workers are told in another way
        return self._target

    def close(self) -> None:
        """Free the rows in the stores. Idempotent."""
        if self._target is not None and self._dropped.detach():
            self._target.release().result(_RELEASE_SECONDS)


def task_done(said: Pushed) -> TaskDone:
    """The outcome of a task that has pushed these rows."""
    rows = sum(block.rows for block in said.blocks)
    size_bytes = sum(block.size_bytes for block in said.blocks)
    return TaskDone(said.attempt, said.blocks, TaskMetrics(rows, size_bytes, 0.0), said.holder)
