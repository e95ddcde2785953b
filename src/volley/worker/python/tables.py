# SPDX-License-Identifier: Apache-2.0
"""Table functions: the rows that they return for a row stand beside columns of that row.

A worker returns one result for each row that it was given: a batch, or a pickled list of rows. What comes after the
results of all rows is from `terminate`, and stands beside the last row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from volley.batches import make_batch
from volley.errors import DataError
from volley.plan.python_nodes import PythonProgram
from volley.plan.types import DataType, StructField, StructType, to_arrow
from volley.worker.python.batching import arguments_of, cut, results_of
from volley.worker.python.pickled import RowPickler, read_rows
from volley.worker.python.program_run import Outgoing
from volley.worker.python.protocol import END_OF_DATA
from volley.worker.python.sending import Sender

# As many as Spark pickles at a time. A function cannot tell.
_PICKLED_ROWS = 100


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

    def repeat(self, columns: Sequence[int], count: int) -> list[pa.Array]:
        """These columns of the current row, `count` times. Raises DataError if there has been no row."""
        if self._current is None:
            raise DataError("a table function returned rows without having read one.")
        same = pa.array([self._place] * count, pa.int32())
        return [self._current.column(column).take(same) for column in columns]


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
        returns: Sequence[DataType],
        *,
        grouped: bool,
    ) -> None:
        self._sender = Sender(program, columns)
        self._kept = kept
        self._schema = schema
        self._grouped = grouped
        self._rows = _RowsRead()

    def send(self, items: Iterable[Any], out: Outgoing) -> None:
        rows = chain.from_iterable(items) if self._grouped else items
        out.stream(self._sender.schema, self._sender.batches(rows, self._rows.add))

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._rows.advance()
        if results.num_rows:
            (wrapped,) = results.columns
            beside = self._rows.repeat(self._kept, results.num_rows)
            found = results_of(wrapped.flatten(), self._schema, len(self._kept))
            yield make_batch([*beside, *found], self._schema, results.num_rows)

    def finish(self) -> None:
        """It may stop reading rows before their end."""


class PickledTableRows:
    """A table function whose rows are pickled."""

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        returns: Sequence[DataType],
        *,
        grouped: bool,
    ) -> None:
        self._columns = columns
        self._sent = pa.schema([pa.field(field.name, to_arrow(field.type)) for field in program.columns])
        as_bytes = program.setting("spark.sql.execution.pyspark.binaryAsBytes") != "false"
        self._pickler = RowPickler(program.columns, binary_as_bytes=as_bytes)
        self._kept = kept
        self._schema = schema
        self._row = StructType(tuple(StructField(f"_{n}", kind, True) for n, kind in enumerate(returns)))
        self._grouped = grouped
        self._rows = _RowsRead()

    def send(self, items: Iterable[Any], out: Outgoing) -> None:
        rows = chain.from_iterable(items) if self._grouped else items
        for group in cut(rows, _PICKLED_ROWS):
            self._rows.add(group)
            out.block(self._pickler.pickle(arguments_of(group, self._columns, self._sent)))
        out.integer(END_OF_DATA)

    def receive(self, results: bytes) -> Iterator[pa.RecordBatch]:
        for rows in read_rows(results, self._row):
            self._rows.advance()
            if len(rows):
                beside = self._rows.repeat(self._kept, len(rows))
                yield make_batch([*beside, *rows.flatten()], self._schema, len(rows))

    def finish(self) -> None:
        """It may stop reading rows before their end."""
