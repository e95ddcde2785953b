# SPDX-License-Identifier: Apache-2.0
"""Streams of batches as a table that DataFusion reads lazily and without copying.

DataFusion accepts any subclass of `pyarrow.dataset.Dataset` and uses only what is defined here. Each partition
becomes one DataFusion partition and is pulled on a DataFusion thread. A source that waits blocks that thread, so it
should prefetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

Batches = Callable[[], Iterator[pa.RecordBatch]]


class StreamTable(ds.Dataset):  # type: ignore[misc]
    """A table of `partitions`. Each is a function that starts a new pass over the same rows.

    DataFusion may call it again in one query (a self-join), so the first pass must not consume the rows. A frame over
    the table can be used again with the partitions of another table: physical plans have those of the time when they
    were made.

    `most_rows` is a bound of the number of its rows, which such a frame may depend on; None if there is none.
    """

    def __init__(
        self, schema: pa.Schema, partitions: Sequence[Batches], most_rows: int | None = None
    ) -> None:
        # Deliberately without super().__init__(), which requires a native dataset.
        self._schema = schema
        self._partitions: Sequence[Batches] = partitions
        self.most_rows = most_rows

    def copy(self) -> StreamTable:
        return StreamTable(self._schema, self._partitions, self.most_rows)

    def can_read(self, other: StreamTable) -> bool:
        """Whether what a frame knows of this table is true of `other`, too."""
        return self.most_rows is None or (other.most_rows is not None and other.most_rows <= self.most_rows)

    def read_from(self, other: StreamTable | None) -> None:
        """Have the partitions of another table that it `can_read`; none without one."""
        self._partitions = other._partitions if other is not None else []

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: list[str] | None = None, **_: Any) -> _Projection:
        return _Projection(_project(self._schema, columns))

    def get_fragments(self, filter: ds.Expression | None = None) -> Iterator[_Fragment]:
        # DataFusion needs at least one partition, even for an empty table.
        for batches in self._partitions or [lambda: iter(())]:
            yield _Fragment(batches)


class _Projection:
    def __init__(self, schema: pa.Schema) -> None:
        self.projected_schema = schema


class _Fragment:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def scanner(
        self,
        schema: pa.Schema,
        columns: list[str] | None = None,
        filter: ds.Expression | None = None,
        batch_size: int | None = None,
    ) -> _Scanner:
        return _Scanner(self._batches, schema, columns, filter)


class _Scanner:
    def __init__(
        self, batches: Batches, schema: pa.Schema, columns: list[str] | None, condition: ds.Expression | None
    ) -> None:
        self._batches = batches
        self._columns = columns
        self._condition = condition
        self.projected_schema = _project(schema, columns)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        condition = self._condition
        if isinstance(condition, pa.Scalar):
            # DataFusion passes a constant as a value, not as an expression.
            if not condition.as_py():
                return
            condition = None
        for batch in self._batches():
            # DataFusion does not apply a pushed filter again above the table.
            if condition is not None:
                batch = batch.filter(condition)
            if self._columns is not None:
                batch = batch.select(self._columns)
            # Empty batches pass too: a waiting source sends some, to release DataFusion's thread for a moment.
            yield batch


def _project(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])
