# SPDX-License-Identifier: Apache-2.0
"""How a scan is divided over tasks before any file is opened: by file sizes alone.

files          a file larger than `split_bytes` is cut into ranges, small files are combined
data sources   a source still discovers its splits, so every worker may get some
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from volley.formats import can_split
from volley.plan.expressions import Expression, references
from volley.plan.nodes import DataFile, FileScan, Filter, Node, Project, SourceScan, transform, walk
from volley.stages.limits import PlannerLimits

_UNKNOWN_BYTES = 2**50


def scan_tasks(scan: FileScan | SourceScan, workers: int, limits: PlannerLimits) -> int:
    """How many tasks can share a scan. A data source that does not say how large it is may occupy all workers."""
    if isinstance(scan, SourceScan) and scan.wanted_tasks is not None:
        return max(1, min(workers, scan.wanted_tasks))
    if isinstance(scan, SourceScan):
        known = scan.estimated_bytes
        return workers if known is None else max(1, min(workers, known // limits.scan_task_bytes))
    pieces = sum(
        max(1, file.size_bytes // limits.min_split_bytes) if can_split(scan, file) else 1
        for file in scan.files
    )
    return max(1, min(workers, pieces, cost_bytes(scan, limits) // limits.scan_task_bytes))


def cost_bytes(scan: FileScan, limits: PlannerLimits) -> int:
    """The cost of reading the whole scan, in bytes, including opening its files."""
    return limits.open_file_bytes * len(scan.files) + read_bytes(scan)


def read_bytes(scan: FileScan) -> int:
    """The bytes of the scan's columns in its files."""
    return int(scan.share * sum(file.size_bytes for file in scan.files))


def split_bytes(scan: FileScan, tasks: int, limits: PlannerLimits) -> int:
    """The target split size for this many tasks: larger files are cut, smaller ones combined."""
    total_bytes = sum(file.size_bytes for file in scan.files)
    wanted = total_bytes // (tasks * limits.splits_per_task)
    return max(limits.min_split_bytes, min(limits.max_split_bytes, wanted))


def assign_files(
    scan: FileScan, tasks: int, limits: PlannerLimits
) -> tuple[tuple[DataFile, ...], ...] | None:
    """Assign whole files to tasks; None if that would be too uneven."""
    shares: list[list[DataFile]] = [[] for _ in range(tasks)]
    heap = [(0, task) for task in range(tasks)]
    for file in sorted(scan.files, key=lambda file: (-file.size_bytes, file.path)):
        cost, task = heapq.heappop(heap)
        shares[task].append(file)
        heapq.heappush(heap, (cost + limits.open_file_bytes + file.size_bytes, task))
    busiest = max(heap)[0]
    total = sum(cost for cost, _ in heap)
    is_even = (all(shares) or not scan.files) and busiest * tasks <= limits.file_imbalance * total
    return tuple(map(tuple, shares)) if is_even else None


def push_down(plan: Node) -> Node:
    """Push the filter and projection directly above a data source into its scan. Spark does not do that."""
    if not any(isinstance(node, SourceScan) for node in walk(plan)):
        return plan

    def push(node: Node) -> Node:
        match node:
            case Filter(condition, SourceScan() as scan):
                return replace(node, child=replace(scan, filters=(condition,)))
            case Project(wanted, SourceScan() as scan):
                return replace(node, child=_narrow(scan, wanted))
            case Project(wanted, Filter(condition, SourceScan() as scan) as kept):
                return replace(node, child=replace(kept, child=_narrow(scan, (*wanted, condition))))
            case _:
                return node

    return transform(plan, push)


def _narrow(scan: SourceScan, users: Sequence[Expression]) -> SourceScan:
    read = frozenset[int]().union(*map(references, users))
    # Keep one column: rows without columns could not be counted.
    kept = [place for place, column in enumerate(scan.output) if column.id in read] or [0]
    return replace(
        scan,
        columns=tuple(scan.columns[place] for place in kept),
        output=tuple(scan.output[place] for place in kept),
    )


def scans_of(plan: Node) -> list[FileScan | SourceScan]:
    """The scans that the tasks of a plan divide, top down. A scan's index in this list is its number."""
    return [
        node
        for node in walk(plan)
        if isinstance(node, SourceScan) or (isinstance(node, FileScan) and not node.whole)
    ]


def scanned_bytes(plan: Node) -> int:
    """The bytes a plan reads. A data source that does not say how large it is counts as larger than any file."""
    return sum(_scan_bytes(scan) for scan in scans_of(plan))


def _scan_bytes(scan: FileScan | SourceScan) -> int:
    if isinstance(scan, FileScan):
        return read_bytes(scan)
    return _UNKNOWN_BYTES if scan.estimated_bytes is None else scan.estimated_bytes
