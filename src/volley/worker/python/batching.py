# SPDX-License-Identifier: Apache-2.0
"""Converts rows for a Python worker and back: cut into batches like Spark's, with the types that functions see."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

import pyarrow as pa

from volley.batches import conform, make_batch
from volley.errors import DataError
from volley.plan.expressions import Attribute
from volley.plan.python_nodes import PythonProgram
from volley.plan.types import (
    ArrayType,
    DataType,
    MapType,
    OpaqueType,
    SimpleType,
    StructField,
    StructType,
    to_arrow,
    to_result,
)

_TIME_ZONE = "spark.sql.session.timeZone"
_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


def worker_schema(program: PythonProgram) -> pa.Schema:
    """The columns as Spark sends them: timestamps have the zone of the session."""
    zone = program.setting(_TIME_ZONE) or "UTC"
    large = program.setting(_LARGE_TYPES) == "true"
    return pa.schema([_worker_field(field, zone, large) for field in program.columns])


def _worker_field(field: StructField, zone: str, large: bool) -> pa.Field:
    return pa.field(field.name, _worker_type(field.type, zone, large), field.nullable)


def _worker_type(data_type: DataType, zone: str, large: bool) -> pa.DataType:
    match data_type:
        case SimpleType("timestamp"):
            return pa.timestamp("us", tz=zone)
        case SimpleType("string") if large:
            return pa.large_string()
        case SimpleType("binary") if large:
            return pa.large_binary()
        case StructType(fields):
            return pa.struct([_worker_field(field, zone, large) for field in fields])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", _worker_type(element, zone, large), contains_null))
        case MapType(key, value, contains_null):
            item = pa.field("value", _worker_type(value, zone, large), contains_null)
            return pa.map_(_worker_type(key, zone, large), item)
        case OpaqueType("variant"):
            # PySpark tells a variant from a struct by this mark.
            value, metadata = to_arrow(data_type)
            return pa.struct([value, metadata.with_metadata({"variant": "true"})])
        case _:
            return to_result(data_type)


_MOST_JOINED = 8
_SMALL_BYTES = 2**19
_JOINED_BYTES = _MOST_JOINED * _SMALL_BYTES
_JOIN_SECONDS = 0.02


def cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """The batches in groups of exactly `rows` rows, the last one of what is left; 0: all rows in one group."""
    return _cut(batches, rows, lambda batch: 1)


def cut_large(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """As `cut`, but several groups are one if they are small: what a batch costs does not depend on its rows."""
    return _join_small(_cut(batches, rows, lambda batch: _small_multiple(batch, rows)), rows)


def _cut(
    batches: Iterable[pa.RecordBatch], rows: int, most: Callable[[pa.RecordBatch], int]
) -> Iterator[list[pa.RecordBatch]]:
    """`most` is how many groups of this batch may be one."""
    group: list[pa.RecordBatch] = []
    missing = rows
    for batch in batches:
        while rows and batch.num_rows >= missing:
            count = missing if group else rows * min(batch.num_rows // rows, most(batch))
            yield [*group, batch.slice(0, count)]
            batch = batch.slice(count)
            group, missing = [], rows
        if batch.num_rows:
            group.append(batch)
            missing -= batch.num_rows
    if group:
        yield group


def _small_multiple(batch: pa.RecordBatch, rows: int) -> int:
    small_rows: int = _JOINED_BYTES * batch.num_rows // (batch.nbytes or 1)
    return max(1, min(_MOST_JOINED, small_rows // rows))


def _join_small(groups: Iterable[list[pa.RecordBatch]], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Several groups in one if they are small.

    There are more and more, so that the first results come early; and those that come slowly are not joined.
    """
    joined: list[pa.RecordBatch] = []
    count, wanted, size_bytes, since = 0, 1, 0, time.monotonic()
    for group in groups:
        if group[0].num_rows > rows:
            # Large already. Joined to others, it would be copied.
            if joined:
                yield joined
            yield group
            joined, count, size_bytes, since = [], 0, 0, time.monotonic()
            continue
        joined += group
        count += 1
        size_bytes += sum(batch.nbytes for batch in group)
        are_small = size_bytes <= count * _SMALL_BYTES
        if count >= wanted or not are_small or time.monotonic() - since > _JOIN_SECONDS:
            yield joined
            wanted = min(2 * wanted, _MOST_JOINED) if are_small else 1
            joined, count, size_bytes, since = [], 0, 0, time.monotonic()
    if joined:
        yield joined


def arguments_of(
    group: Sequence[pa.RecordBatch], columns: Sequence[int], schema: pa.Schema
) -> pa.RecordBatch:
    """These columns of the batches as one batch of `schema`."""
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        chunks = [conform(batch.column(column), field.type) for batch in group]
        arrays.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))
    return make_batch(arrays, schema, sum(batch.num_rows for batch in group))


def check_size(batch: pa.RecordBatch, program: PythonProgram) -> pa.RecordBatch:
    """The batch itself. Raises DataError if Spark, by its own size estimate, might cut it."""
    if program.batch_bytes and batch.nbytes > program.batch_bytes // 2:
        raise DataError(f"a batch of {batch.nbytes} bytes for a Python function may be too large for Spark.")
    return batch


class Alignment:
    """Puts results beside the rows that they belong to. Results come in the order of the rows, in batches of any size.

    One thread adds rows, another one results.
    """

    def __init__(self, kept: Sequence[int], schema: pa.Schema, types: Sequence[DataType]) -> None:
        """The columns `kept` of the rows come first, then the results of `types`; together they have `schema`."""
        self._kept = kept
        self._schema = schema
        self._types = types
        self._rows: deque[pa.RecordBatch] = deque()

    def add(self, rows: Iterable[pa.RecordBatch]) -> None:
        batches = list(rows)
        # What a batch costs on its way to the plan above does not depend on its rows.
        if (
            len(batches) > 1
            and batches[0].num_columns
            and sum(batch.nbytes for batch in batches) <= _JOINED_BYTES
        ):
            batches = [pa.concat_batches(batches)]
        self._rows.extend(batches)

    def match(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The next rows, each with its results. Nothing is copied."""
        arrays = results_of(results.columns, self._types)
        start = 0
        while start < results.num_rows:
            if not self._rows:
                raise DataError("a Python function returned more rows than it was given.")
            rows = self._rows.popleft()
            count = min(rows.num_rows, results.num_rows - start)
            if count < rows.num_rows:
                self._rows.appendleft(rows.slice(count))
            columns = [
                *(rows.column(place).slice(0, count) for place in self._kept),
                *(array.slice(start, count) for array in arrays),
            ]
            yield make_batch(columns, self._schema, count)
            start += count

    def finish(self) -> None:
        if self._rows:
            raise DataError("a Python function returned fewer rows than it was given.")


def results_of(columns: Sequence[pa.Array], types: Sequence[DataType]) -> list[pa.Array]:
    """The results, which should have these types, as the plan has them.

    Raises DataError if a function returned another type: Spark decides what that means.
    """
    if len(columns) != len(types):
        raise DataError(f"a Python worker returned {len(columns)} columns instead of {len(types)}.")
    for array, data_type in zip(columns, types, strict=True):
        if not _same_values(array.type, to_result(data_type)):
            raise DataError(f"a Python function returned {array.type} instead of {data_type}.")
    results = [conform(array, to_arrow(data_type)) for array, data_type in zip(columns, types, strict=True)]
    _check_nulls(results, repeat(True))
    return results


def rows_of(wrapped: pa.StructArray, results: Sequence[Attribute]) -> list[pa.Array]:
    """The columns of rows that a function returned as structs. Raises DataError as `results_of`."""
    columns = results_of(wrapped.flatten(), [attribute.type for attribute in results])
    _check_nulls(columns, (attribute.nullable for attribute in results))
    return columns


def _check_nulls(columns: Iterable[pa.Array], nullable: Iterable[bool]) -> None:
    """Raises DataError for a NULL where the type that the program gave allows none: Spark fails in its own words."""
    if any(map(_has_forbidden_null, columns, nullable)):
        raise DataError("a Python function returned NULL for a column or field that has none.")


def _has_forbidden_null(array: pa.Array, nullable: bool) -> bool:
    if array.null_count and not nullable:
        return True
    match array.type:
        case pa.StructType() as kind:
            present = array.drop_null() if array.null_count else array
            fields = zip(present.flatten(), kind, strict=True)
            return any(_has_forbidden_null(child, field.nullable) for child, field in fields)
        case pa.ListType() as kind:
            return _has_forbidden_null(array.flatten(), kind.value_field.nullable)
        case pa.MapType() as kind:
            return _has_forbidden_null(array.items, kind.item_field.nullable)
        case _:
            return False


def _same_values(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the types differ at most in names of elements, the zone of timestamps and the width of offsets."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return bool(found.unit == wanted.unit) and (found.tz is None) == (wanted.tz is None)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        pairs = zip(found, wanted, strict=False)
        return found.num_fields == wanted.num_fields and all(
            mine.name == theirs.name and _same_values(mine.type, theirs.type) for mine, theirs in pairs
        )
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _same_values(found.value_type, wanted.value_type)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return _same_values(found.key_type, wanted.key_type) and _same_values(
            found.item_type, wanted.item_type
        )
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found))
    return bool(found.equals(wanted))


_ENOUGH_ROWS = 4096
_LONGEST_SECONDS = 0.1


class Gathered:
    """Combines small batches: a function of groups returns one batch for each group."""

    def __init__(self, pass_on: Callable[[pa.RecordBatch], None]) -> None:
        self._pass_on = pass_on
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._since = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        if not self._batches:
            self._since = time.monotonic()
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _ENOUGH_ROWS or time.monotonic() - self._since > _LONGEST_SECONDS:
            self.flush()

    def flush(self) -> None:
        batches, self._batches, self._rows = self._batches, [], 0
        if len(batches) <= 1:
            for batch in batches:
                self._pass_on(batch)
        elif batches:
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                self._pass_on(batch)
