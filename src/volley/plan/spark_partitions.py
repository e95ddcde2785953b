# SPDX-License-Identifier: Apache-2.0
"""How Spark partitions the rows of a plan, where that is certain before the plan runs.

`SparkPartitions.java` asks Spark for the partitions of leaves. Operators that work row by row keep them, and the order
of rows inside. `with_partitions` notes them in the leaves of a plan, and `nth_partition` is the plan of one of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

import pyarrow as pa

from volley.plan import synthetic_ids
from volley.plan.expressions import Alias, Attribute, Call, SortKey
from volley.plan.file_scans import plain_path
from volley.plan.nodes import (
    FilePart,
    FileScan,
    Filter,
    Generate,
    Limit,
    LocalRows,
    Node,
    OneRow,
    PartitionedRows,
    Project,
    Range,
    Sort,
    Union,
    with_children,
)
from volley.plan.types import LONG

Item = TypeVar("Item")


@dataclass(frozen=True)
class Slices:
    """Rows in order, cut into `count` slices of about the same length."""

    count: int


@dataclass(frozen=True)
class DriverRows:
    """Rows that the program gave to `createDataFrame`, which know their partitions."""


@dataclass(frozen=True)
class Files:
    """For each partition the parts of files that it reads: URL, first byte and number of bytes."""

    partitions: tuple[tuple[tuple[str, int, int], ...], ...]


@dataclass(frozen=True)
class Concatenated:
    """The partitions of the inputs of a union, one after the other."""

    inputs: tuple[Layout, ...]


@dataclass(frozen=True)
class Together:
    """The rows of the inputs of a union, one input after the other, in one partition."""


@dataclass(frozen=True)
class Grouped:
    """Neighbouring partitions together, in `count` groups."""

    count: int
    below: Layout


@dataclass(frozen=True)
class Unclear:
    """Not certain, because of this operator."""

    operator: str


Layout = Slices | DriverRows | Files | Concatenated | Together | Grouped | Unclear


def with_partitions(plan: Node, layout: Layout) -> Node | None:
    """The plan, whose leaves know the partitions of a layout; None if the partitions of its rows are not certain."""
    match plan:
        case Limit() if plan.whole or isinstance(layout, Grouped):
            # Where partitions are put together is not known: below the limit, or above it.
            return None
        case Project() | Filter() | Generate() | Limit():
            child = with_partitions(plan.child, layout)
            return None if child is None else with_children(plan, (child,))
        case Sort(keys, False, rows) if not isinstance(layout, Grouped):
            shown = {key.child.id for key in keys if isinstance(key.child, Attribute)}
            if not all(column.id in shown for column in rows.output):
                # The order of equal rows would show.
                return None
            child = with_partitions(rows, layout)
            return None if child is None else _sort_stably(plan, keys, child)
        case PartitionedRows() if not isinstance(layout, Grouped | Unclear) and not plan.in_order:
            return plan
        case Union() if isinstance(layout, Concatenated) and len(layout.inputs) == len(plan.inputs):
            pairs = zip(plan.inputs, layout.inputs, strict=True)
            branches = [with_partitions(branch, below) for branch, below in pairs]
            known = tuple(branch for branch in branches if branch is not None)
            return replace(plan, inputs=known) if len(known) == len(branches) else None
        case FileScan():
            parts = _file_parts(plan, layout)
            return None if parts is None else replace(plan, partitions=tuple(parts))
        case Range():
            counts = _row_counts(len(range(plan.start, plan.end, plan.step)), layout)
            return None if counts is None else replace(plan, partition_rows=tuple(counts))
        case LocalRows():
            counts = _row_counts(_count_rows(plan), layout, plan.partition_rows)
            return None if counts is None else replace(plan, partition_rows=tuple(counts))
        case OneRow() if layout == Slices(1):
            return plan
        case _:
            return None


def _sort_stably(sort: Sort, keys: tuple[SortKey, ...], rows: Node) -> Node:
    """A sort within partitions. As in Spark, rows with equal keys stay in order: 0.0 and -0.0 are equal."""
    numbered = PartitionedRows(
        rows, (Alias(_PLACE.id, _PLACE.name, Call("MonotonicallyIncreasingID", (), LONG)),)
    )
    place = SortKey(_PLACE, ascending=True, nulls_first=True)
    return Project(sort.output, replace(sort, keys=(*keys, place), child=numbered))


_PLACE = Attribute(synthetic_ids.PLACE, "place", LONG, False)


def partition_count(plan: Node) -> int:
    """How many partitions a plan of `with_partitions` has."""
    match plan:
        case Range() | LocalRows():
            return len(plan.partition_rows)
        case FileScan():
            return len(plan.partitions)
        case PartitionedRows():
            return partition_count(plan.plan)
        case _:
            return sum(map(partition_count, plan.children)) if plan.children else 1


def nth_partition(plan: Node, number: int) -> Node:
    """The plan of one partition. It has one partition itself."""
    match plan:
        case Range(start, _, step):
            first, end = _bounds(plan.partition_rows, number)
            return replace(
                plan, start=start + first * step, end=start + end * step, partition_rows=(end - first,)
            )
        case LocalRows():
            return _slice(plan, *_bounds(plan.partition_rows, number))
        case FileScan():
            parts = plan.partitions[number]
            return replace(plan, files=tuple(part.file for part in parts), partitions=(parts,))
        case PartitionedRows():
            return replace(plan, plan=nth_partition(plan.plan, number), first=plan.first + number)
        case Union():
            for branch in plan.inputs:
                if number < (count := partition_count(branch)):
                    return replace(plan, inputs=(nth_partition(branch, number),))
                number -= count
            raise IndexError(f"a union has no partition {number}")
        case _ if plan.children:
            (child,) = plan.children
            return with_children(plan, (nth_partition(child, number),))
        case _:
            return plan


def _row_counts(rows: int, layout: Layout, known: tuple[int, ...] = ()) -> Sequence[int] | None:
    """The number of rows of each partition of a leaf."""
    match layout:
        case Slices(count):
            return [rows * (place + 1) // count - rows * place // count for place in range(count)]
        case DriverRows() if sum(known) == rows:
            return known
        case Grouped(count, below):
            counts = _row_counts(rows, below, known)
            return None if counts is None else [sum(group) for group in _group(counts, count)]
        case _:
            return None


# The formats of which Volley reads parts of files as Spark divides them.
_DIVIDED = frozenset({"parquet", "avro"})


def _file_parts(scan: FileScan, layout: Layout) -> Sequence[tuple[FilePart, ...]] | None:
    """The parts of files of each partition of a scan; None if a part is not one that Volley can tell apart."""
    match layout:
        case Files(partitions) if not scan.prunings:
            files = {file.path: file for file in scan.files}
            found: list[tuple[FilePart, ...]] = []
            for partition in partitions:
                if any(plain_path(url) not in files for url, _, _ in partition):
                    return None
                found.append(
                    tuple(
                        FilePart(files[plain_path(url)], start, start + size_bytes)
                        for url, start, size_bytes in partition
                    )
                )
            parts = [part for partition in found for part in partition]
            covers = sum(part.end - part.start for part in parts) == sum(
                file.size_bytes for file in scan.files
            )
            if (
                scan.stores
                or not covers
                or not all(part.is_whole or scan.format in _DIVIDED for part in parts)
            ):
                return None
            return found
        case Grouped(count, below):
            parts_of = _file_parts(scan, below)
            return None if parts_of is None else [sum(group, ()) for group in _group(parts_of, count)]
        case _:
            return None


def _group(items: Sequence[Item], count: int) -> Iterable[Sequence[Item]]:
    """Neighbours together, as Spark's coalesce does for rows that are nowhere in particular."""
    count = min(count, len(items))
    return [items[place * len(items) // count : (place + 1) * len(items) // count] for place in range(count)]


def _bounds(counts: tuple[int, ...], number: int) -> tuple[int, int]:
    ends = list(accumulate(counts))
    return ends[number] - counts[number], ends[number]


def _count_rows(rows: LocalRows) -> int:
    return sum(batch.num_rows for batch in pa.ipc.open_stream(rows.ipc))


def _slice(rows: LocalRows, first: int, end: int) -> LocalRows:
    sliced = pa.ipc.open_stream(rows.ipc).read_all().slice(first, end - first)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, sliced.schema) as writer:
        writer.write_table(sliced)
    return replace(rows, ipc=sink.getvalue(), partition_rows=(end - first,))
