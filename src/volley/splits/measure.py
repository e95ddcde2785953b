# SPDX-License-Identifier: Apache-2.0
"""Estimates how many bytes a query reads.

A few columns of a wide table are small. The share that a query reads of its files comes from one footer per scan, that
of its largest file. A Python data source may say how much it has, and how many tasks it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from volley.errors import DataError
from volley.formats import footer_of
from volley.formats.base import Footer
from volley.plan.expressions import Attribute
from volley.plan.nodes import (
    CachedRows,
    FileScan,
    Join,
    LocalRows,
    MaterializedInput,
    Node,
    PartitionedRows,
    Range,
    SourceScan,
    transform,
    walk,
)
from volley.plan.subqueries import plans_in, with_subqueries
from volley.splits.datasource import ask_source
from volley.stages.limits import PlannerLimits
from volley.stages.scans import cost_bytes

_NUMBER_BYTES = 8


def measure(plan: Node) -> Node:
    """Set what each scan of the plan and its subqueries reads, as far as that is known."""

    def measure_scan(node: Node) -> Node:
        if isinstance(node, SourceScan):
            return ask_source(node)
        return replace(node, share=_share(node)) if isinstance(node, FileScan) and node.files else node

    return with_subqueries(transform(plan, measure_scan), measure)


def fits_one_task(plan: Node, limits: PlannerLimits) -> bool:
    """Whether a measured plan and its subqueries read few enough bytes for one task, and have no cross join."""
    left = float(limits.single_task_bytes)
    for bytes_read in _reads(plan, limits):
        left -= bytes_read
        if left < 0:
            return False
    return limits.single_task_bytes > 0


def _reads(plan: Node, limits: PlannerLimits) -> Iterator[float]:
    """The bytes that each leaf of a plan reads; infinite if unknown."""
    for node in walk(plan):
        match node:
            case FileScan():
                yield cost_bytes(node, limits)
            case LocalRows():
                yield len(node.ipc)
            case CachedRows():
                yield node.size_bytes
            case PartitionedRows():
                yield from _reads(node.plan, limits)
            case Range():
                yield _NUMBER_BYTES * len(range(node.start, node.end, node.step))
            case SourceScan() if node.estimated_bytes is not None:
                yield node.estimated_bytes
            case SourceScan() | MaterializedInput():
                # The size of its rows is unknown.
                yield float("inf")
            case Join() if not node.left_keys:
                yield float("inf")
    for subquery in plans_in(plan):
        yield from _reads(subquery, limits)


def _share(scan: FileScan) -> float:
    """The share of bytes in the scan's columns, by the footer of its largest file; 1 if that cannot be read here."""
    largest = max(scan.files, key=lambda file: file.size_bytes)
    try:
        footer = footer_of(scan, largest)
    except DataError:
        return 1.0
    if footer is None:
        return 1.0
    sizes = footer.column_bytes
    from_path = {column.id for column in scan.partition_columns}
    names = {
        _name_in_file(footer, scan, column).lower() for column in scan.output if column.id not in from_path
    }
    total = sum(sizes.values())
    return sum(sizes.get(name, 0) for name in names) / total if total else 0.0


def _name_in_file(footer: Footer, scan: FileScan, column: Attribute) -> str:
    stored = scan.stored_column(column.name)
    if stored is None:
        return column.name
    try:
        found = footer.column(column.name, column.type, scan.options, stored)
    except DataError:
        return column.name  # reading the file reports what is wrong
    return column.name if found is None else str(found.name)
