# SPDX-License-Identifier: Apache-2.0
"""The result of a native query, for PySpark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from volley.batches import conform, table_without_columns
from volley.plan.expressions import Attribute
from volley.plan.types import NULL, to_arrow, to_result


class NativeResult:
    """The engine's batches, with the names and types of the plan's output. Can be read once."""

    def __init__(self, batches: Iterator[pa.RecordBatch], output: tuple[Attribute, ...]) -> None:
        # Arrow refuses a column of no type that is never NULL, which a frame without rows may have.
        self.schema = pa.schema(
            [
                pa.field(column.name, to_result(column.type), column.nullable or column.type == NULL)
                for column in output
            ]
        )
        self._types = [to_arrow(column.type) for column in output]
        self.rows = 0
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """All rows, under `schema` if given: its columns correspond by position."""
        return self._table(list(self), schema or self.schema)

    def last_rows(self, count: int, schema: pa.Schema | None = None) -> pa.Table:
        """The last rows only, under `schema` if given. Earlier rows are dropped while reading."""
        kept: deque[pa.RecordBatch] = deque()
        held = 0
        for batch in self:
            kept.append(batch)
            held += batch.num_rows
            while held - kept[0].num_rows >= count:
                held -= kept.popleft().num_rows
                if not kept:
                    break
        table = self._table(list(kept), schema or self.schema)
        if not len(self.schema):
            # A slice of it would have all its rows.
            return table_without_columns(min(table.num_rows, count))
        return table.slice(max(0, table.num_rows - count))

    def named(self, batch: pa.RecordBatch) -> pa.Table:
        return self._table([batch], self.schema)

    def _table(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        if not len(schema):
            # They may carry a column that only keeps their number.
            return table_without_columns(sum(batch.num_rows for batch in batches))
        if not batches:
            # Columns of one chunk each: `createDataFrame` fails on an array without any.
            return schema.empty_table()
        columns = [
            pa.chunked_array([batch.column(index) for batch in batches], self._types[index])
            for index in range(len(schema))
        ]
        # By position, since names may repeat.
        cast = [
            pa.chunked_array([conform(chunk, field.type) for chunk in column.chunks], field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        return pa.Table.from_arrays(cast, schema=schema)
