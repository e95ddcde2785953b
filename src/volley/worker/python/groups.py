# SPDX-License-Identifier: Apache-2.0
"""Cuts a sorted stream into groups of rows, and deals whole groups to the streams of an operator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from volley.plan.python_nodes import RowFrame
from volley.run_ends import find_run_ends
from volley.worker.split_queue import Stopped

Group = list[pa.RecordBatch]
"""All rows of a group."""


def cut_groups(batches: Iterable[pa.RecordBatch], keys: Sequence[int]) -> Iterator[Group]:
    """The groups of rows with equal values in the columns `keys`, by which the rows are sorted. No keys: one group."""
    group: Group = []
    for batch in batches:
        if not batch.num_rows:
            continue
        start = 0
        for end in find_run_ends(map(batch.column, keys), batch.num_rows):
            rows = batch.slice(start, end - start)
            if group and start == 0 and not _same_group(group[-1], rows, keys):
                yield group
                group = []
            group.append(rows)
            if end < batch.num_rows:
                yield group
                group = []
            start = end
    if group:
        yield group


def _same_group(before: pa.RecordBatch, after: pa.RecordBatch, keys: Sequence[int]) -> bool:
    last = before.num_rows - 1
    return all(before.column(key).slice(last, 1).equals(after.column(key).slice(0, 1)) for key in keys)


def add_bounds(group: Group, frames: Sequence[RowFrame]) -> Group:
    """The group with two columns for each frame: the first row of the frame of each row, and the one after the last."""
    count = sum(batch.num_rows for batch in group)
    start, found = 0, []
    for batch in group:
        places = np.arange(start, start + batch.num_rows, dtype=np.int64)
        start += batch.num_rows
        for frame in frames:
            for bound, unbounded, after in ((frame.lower, 0, 0), (frame.upper, count, 1)):
                values = np.full_like(places, unbounded) if bound is None else places + (bound + after)
                column = pa.array(np.clip(values, 0, count).astype(np.int32))
                batch = batch.append_column(f"bound{batch.num_columns}", column)
        found.append(batch)
    return found


class GroupQueue:
    """Groups from one thread to several, bounded in bytes. A group over the limit is queued alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._groups: deque[tuple[Group, int]] = deque()
        self._held_bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False

    def put(self, group: Group) -> None:
        size = sum(batch.nbytes for batch in group)
        with self._changed:
            while not self._closed and self._groups and self._held_bytes + size > self._limit_bytes:
                self._changed.wait()
            if self._closed:
                raise Stopped
            self._groups.append((group, size))
            self._held_bytes += size
            self._changed.notify_all()

    def groups(self) -> Iterator[Group]:
        """Take groups until there are no more. Several threads may do so, and each group goes to one of them."""
        while True:
            with self._changed:
                while not self._groups and not self._ended and not self._closed:
                    self._changed.wait()
                if self._closed:
                    raise Stopped
                if not self._groups:
                    return
                group, size = self._groups.popleft()
                self._held_bytes -= size
                self._changed.notify_all()
            yield group

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all threads, which raise Stopped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
