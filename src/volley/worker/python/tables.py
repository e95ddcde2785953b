# SPDX-License-Identifier: Apache-2.0
"""Table functions: the rows that they return for an input row are joined with columns of that row.

A worker returns one result for each row that it was given: a batch, a list in a batch, or a pickled list of rows. What
comes after the results of all rows is from `terminate`, and stands beside the last row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from volley.batches import make_batch
from volley.errors import DataError
from volley.plan.expressions import Attribute
from volley.plan.python_nodes import PythonProgram
from volley.plan.types import StructField, StructType, to_arrow
from volley.worker.python.batching import arguments_of, cut, rows_of
from volley.worker.python.pickled import RowPickler, read_rows
from volley.worker.python.program_run import Outgoing
from volley.worker.python.protocol import END_OF_DATA
from volley.worker.python.sending import Sender

# Spark's batch size for pickled rows. Functions cannot observe it.
_PICKLED_ROWS = 100
# How many results are converted together, unless they come slowly.
_RESULTS = 256
_WAIT_SECONDS = 0.02


class _RowsRead:
    """The rows that were sent, each until its results come. One thread adds them, another one takes them."""

    def __init__(self) -> None:
        self._batches: deque[pa.RecordBatch] = deque()
        self._current: pa.RecordBatch | None = None
        self._place = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches.extend(batches)

    def advance(self) -> None:
        """Go on to the next row; there may be none after the last one."""
        if self._current is not None and self._place + 1 < self._current.num_rows:
            self._place += 1
        elif self._batches:
            self._current, self._place = self._batches.popleft(), 0

    def beside(self, columns: Sequence[int], counts: Sequence[int]) -> list[pa.Array]:
        """These columns of the next rows, of which each is repeated as often as `counts` says.

        Raises DataError if there has been no row.
        """
        runs: list[tuple[pa.RecordBatch, list[int], list[int]]] = []
        for count in counts:
            self.advance()
            if not count:
                continue
            if self._current is None:
                raise DataError("a table function returned rows without having read one.")
            if not runs or runs[-1][0] is not self._current:
                runs.append((self._current, [], []))
            runs[-1][1].append(self._place)
            runs[-1][2].append(count)
        if not runs:
            return []  # no rows follow, so these are not needed
        taken = [(batch, pa.array(np.repeat(places, repeats))) for batch, places, repeats in runs]
        return [
            pa.concat_arrays([batch.column(column).take(places) for batch, places in taken])
            for column in columns
        ]


class TableRows:
    """A table function whose rows are sent as Arrow.

    One that is called with batches (`@arrow_udtf`) returns as many as it likes for each, and keeps no columns.
    """

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        returns: Sequence[Attribute],
        *,
        grouped: bool,
    ) -> None:
        self._sender = Sender(program, columns)
        self._kept = kept
        self._schema = schema
        self._returns = returns
        self._grouped = grouped
        self._rows = _RowsRead()
        self._waiting: list[pa.RecordBatch] = []
        self._given = time.monotonic()

    def send(self, items: Iterable[Any], out: Outgoing) -> None:
        rows = chain.from_iterable(items) if self._grouped else items
        out.stream(self._sender.schema, self._sender.batches(rows, self._rows.add))

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Results of PySpark's loop come row by row. Each alone would cost more than the function."""
        self._waiting.append(results)
        is_gathered = _are_lists(results.column(0))
        late = time.monotonic() > self._given + _WAIT_SECONDS
        if is_gathered or late or len(self._waiting) >= _RESULTS:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """It may stop reading rows before their end."""
        waiting, self._waiting = self._waiting, []
        self._given = time.monotonic()
        counts = [count for results in waiting for count in _counts(results.column(0))]
        beside = self._rows.beside(self._kept, counts)
        if not any(counts):
            return
        wrapped = pa.concat_arrays([_returned(results.column(0)) for results in waiting if results.num_rows])
        found = rows_of(wrapped, self._returns)
        yield make_batch([*beside, *found], self._schema, sum(counts))


def _counts(results: pa.Array) -> list[int]:
    """How many rows each call has returned."""
    if not _are_lists(results):
        return [len(results)]
    lengths: list[int] = results.value_lengths().to_pylist()
    return lengths


def _returned(results: pa.Array) -> pa.StructArray:
    return results.flatten() if _are_lists(results) else results


def _are_lists(results: pa.Array) -> bool:
    """Whether each result has the rows of one call, as in the loop of `row_functions`. If not, all are of one call."""
    return bool(pa.types.is_list(results.type))


class PickledTableRows:
    """A table function whose rows are pickled."""

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        returns: Sequence[Attribute],
        *,
        grouped: bool,
    ) -> None:
        self._columns = columns
        self._sent = pa.schema([pa.field(field.name, to_arrow(field.type)) for field in program.columns])
        self._pickler = RowPickler.of(program)
        self._kept = kept
        self._schema = schema
        self._row = StructType(
            tuple(StructField(f"_{n}", result.type, result.nullable) for n, result in enumerate(returns))
        )
        self._grouped = grouped
        self._rows = _RowsRead()

    def send(self, items: Iterable[Any], out: Outgoing) -> None:
        rows = chain.from_iterable(items) if self._grouped else items
        for group in cut(rows, _PICKLED_ROWS):
            self._rows.add(group)
            out.block(self._pickler.pickle(arguments_of(group, self._columns, self._sent)))
        out.integer(END_OF_DATA)

    def receive(self, results: bytes) -> Iterator[pa.RecordBatch]:
        counts, rows = read_rows(results, self._row)
        beside = self._rows.beside(self._kept, counts)
        if len(rows):
            yield make_batch([*beside, *rows.flatten()], self._schema, len(rows))

    def finish(self) -> tuple[()]:
        """It may stop reading rows before their end."""
        return ()
