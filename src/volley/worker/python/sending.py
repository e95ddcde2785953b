# SPDX-License-Identifier: Apache-2.0
"""Makes the batches that a Python worker reads, as Spark cuts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from volley.batches import make_batch
from volley.plan.python_nodes import EvalType, PythonProgram
from volley.spark_versions.registry import current
from volley.worker.python.batching import arguments_of, check_size, cut, cut_large, worker_schema
from volley.worker.python.groups import Group
from volley.worker.python.program_run import Outgoing
from volley.worker.python.row_functions import BATCH_ROWS

# Functions whose columns are sent as the fields of one struct.
_IN_A_STRUCT = frozenset(
    {
        EvalType.MAP_PANDAS_ITER,
        EvalType.MAP_ARROW_ITER,
        EvalType.GROUPED_MAP_ARROW,
        EvalType.GROUPED_MAP_ARROW_ITER,
    }
)


# Joined batches are much smaller, so Spark would not cut any of them.
_LEAST_BATCH_BYTES = 64 * 2**20


def allow_large_batches(program: PythonProgram) -> PythonProgram:
    """The program with the message to a worker that batches may have the rows of several of Spark's."""
    if (
        not current().calls_row_functions
        or not program.batch_rows
        or 0 < program.batch_bytes < _LEAST_BATCH_BYTES
    ):
        return program
    return replace(program, settings=(*program.settings, (BATCH_ROWS, str(program.batch_rows))))


class Sender:
    """Makes batches of the columns that the functions read, as Spark cuts them."""

    def __init__(self, program: PythonProgram, columns: Sequence[int]) -> None:
        self.schema = worker_schema(program)
        self._program = program
        self._columns = columns
        self._is_struct = program.eval_type in _IN_A_STRUCT

    def batches(
        self, rows: Iterable[pa.RecordBatch], note: Callable[[list[pa.RecordBatch]], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """`note` is told the rows of each batch before it is sent: their results may be back at once."""
        divide = cut_large if self._program.setting(BATCH_ROWS) else cut
        for group in divide(rows, self._program.batch_rows):
            if note is not None:
                note(group)
            yield check_size(self._batch(group), self._program)

    def _batch(self, group: list[pa.RecordBatch]) -> pa.RecordBatch:
        if not self._is_struct:
            return arguments_of(group, self._columns, self.schema)
        fields = list(self.schema.field(0).type)
        inner = arguments_of(group, self._columns, pa.schema(fields))
        # From its buffers, because `from_arrays` takes the number of rows from the columns.
        wrapped = pa.Array.from_buffers(
            self.schema.field(0).type, inner.num_rows, [None], children=inner.columns
        )
        return make_batch([wrapped], self.schema, inner.num_rows)

    def groups(self, groups: Iterable[Group], out: Outgoing, note: Callable[[Group], None]) -> None:
        """Send each group as a stream of its own, or as a batch if the worker expects that."""
        if not current().groups_are_streams:
            out.stream(self.schema, self._whole(groups, note))
            return
        for group in groups:
            note(group)
            out.integer(1)
            out.stream(self.schema, self.batches(group))
        out.integer(0)

    def _whole(self, groups: Iterable[Group], note: Callable[[Group], None]) -> Iterator[pa.RecordBatch]:
        for group in groups:
            note(group)
            yield self._batch(group)
