# SPDX-License-Identifier: Apache-2.0
"""The arguments and the result of a program, and how columns are split into messages to the JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from volley.batches import make_batch
from volley.jvm.connection import EvaluationError
from volley.plan.types import DataType, holds_text, to_arrow

Ask = Callable[[pa.RecordBatch, pa.Schema], pa.RecordBatch]
"""Sends arguments to a program, and waits for the batch of its result."""

# A message to the JVM is at most one buffer of Java. Groups of many rows are sent in several.
MOST_BYTES = 256 * 2**20
_LARGEST_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class Signature:
    """With `of_groups` the only argument has for each group a list of states, each of which is a list of rows."""

    arguments: pa.Schema
    result: DataType
    of_groups: bool = False

    @classmethod
    def of_rows(cls, arguments: Sequence[DataType], result: DataType) -> Signature:
        return cls(_columns(arguments), result)

    @classmethod
    def of_rows_in_groups(cls, arguments: Sequence[DataType], result: DataType) -> Signature:
        return cls(pa.schema([("c0", states_of(pa.struct(list(_columns(arguments)))))]), result, True)

    def evaluate(self, columns: Sequence[pa.Array], ask: Ask, most_bytes: int = MOST_BYTES) -> pa.Array:
        """The results for these columns, at least one.

        EvaluationError for what Spark's code raised, ArrowInvalid for text that is not UTF-8.
        """
        rows = len(columns[0])
        if not rows:
            return pa.array([], to_arrow(self.result))
        # A program without arguments is given a column for the number of rows alone.
        batch = make_batch(columns[: len(self.arguments)], self.arguments, rows)
        if rows > 1 and batch.nbytes > most_bytes:
            half = rows // 2 + 1
            halves = [[column.slice(start, half) for column in columns] for start in (0, half)]
            return pa.concat_arrays([self.evaluate(part, ask, most_bytes) for part in halves])
        if batch.nbytes > _LARGEST_BYTES:
            raise EvaluationError("a group is larger than a message to the JVM")
        found = ask(batch, pa.schema([("c0", to_arrow(self.result))])).column(0)
        if holds_text(self.result):
            # Spark's strings may hold any bytes, but those of the native engine are UTF-8.
            found.validate(full=True)
        return found

    def count_rows(self, batch: pa.RecordBatch) -> int:
        """How many rows a program has seen in a batch of arguments."""
        return len(batch.column(0).flatten().flatten()) if self.of_groups else batch.num_rows


def states_of(rows: pa.StructType) -> pa.ListType:
    """The type of the states of a group, in the order in which they are merged."""
    state = pa.list_(pa.field("element", rows, nullable=False))
    return pa.list_(pa.field("element", state, nullable=False))


def _columns(types: Sequence[DataType]) -> pa.Schema:
    return pa.schema([(f"c{place}", to_arrow(kind)) for place, kind in enumerate(types)])
