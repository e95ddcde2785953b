# SPDX-License-Identifier: Apache-2.0
"""How a scan is cut for tasks, before anybody has looked into a file: by sizes alone.

tasks known    a file larger than `split_bytes` is cut into ranges, small files are put together
more to come   a source that is still looking may keep every worker busy
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from volley.formats import format_of
from volley.plan.expressions import Expression, references
from volley.plan.nodes import DataFile, FileScan, Filter, Node, Project, SourceScan, transform, walk
from volley.stages.limits import PlannerLimits

_UNKNOWN_BYTES = 2**50


def scan_tasks(scan: FileScan | SourceScan, workers: int, limits: PlannerLimits) -> int:
    """How many tasks can share a scan. What a source will find is not known yet, so it may be enough for all."""
    if isinstance(scan, SourceScan):
        return workers
    pieces = len(scan.files)
    if format_of(scan.format).splittable:
        pieces = sum(max(1, file.size_bytes // limits.min_split_bytes) for file in scan.files)
    return max(1, min(workers, pieces, cost_bytes(scan, limits) // limits.scan_task_bytes))


def cost_bytes(scan: FileScan, limits: PlannerLimits) -> int:
    """What reading all of it costs, in bytes."""
    return limits.open_file_bytes * len(scan.files) + read_bytes(scan)


def read_bytes(scan: FileScan) -> int:
    """What its columns are of its files."""
    return int(scan.share * sum(file.size_bytes for file in scan.files))


def split_bytes(scan: FileScan, tasks: int, limits: PlannerLimits) -> int:
    """The size at which files are cut and up to which they are put together, for so many tasks."""
    total_bytes = sum(file.size_bytes for file in scan.files)
    wanted = total_bytes // (tasks * limits.splits_per_task)
    return max(limits.min_split_bytes, min(limits.max_split_bytes, wanted))


def dealt(scan: FileScan, tasks: int, limits: PlannerLimits) -> tuple[tuple[DataFile, ...], ...] | None:
    """Whole files for each task; None where one would have to read much more than another."""
    shares: list[list[DataFile]] = [[] for _ in range(tasks)]
    heap = [(0, task) for task in range(tasks)]
    for file in sorted(scan.files, key=lambda file: (-file.size_bytes, file.path)):
        cost, task = heapq.heappop(heap)
        shares[task].append(file)
        heapq.heappush(heap, (cost + limits.open_file_bytes + file.size_bytes, task))
    busiest = max(heap)[0]
    total = sum(cost for cost, _ in heap)
    return tuple(map(tuple, shares)) if busiest * tasks <= limits.file_imbalance * total else None


def push_down(plan: Node) -> Node:
    """The plan with every data source told of the filter and the columns right above it. Spark tells them nothing."""

    def told(node: Node) -> Node:
        match node:
            case Filter(condition, SourceScan() as scan):
                return replace(node, child=replace(scan, filters=(condition,)))
            case Project(wanted, SourceScan() as scan):
                return replace(node, child=_narrowed(scan, wanted))
            case Project(wanted, Filter(condition, SourceScan() as scan) as kept):
                return replace(node, child=replace(kept, child=_narrowed(scan, (*wanted, condition))))
            case _:
                return node

    return transform(plan, told)


def _narrowed(scan: SourceScan, users: Sequence[Expression]) -> SourceScan:
    read = frozenset[int]().union(*map(references, users))
    # Rows without columns could not be counted.
    kept = [place for place, column in enumerate(scan.output) if column.id in read] or [0]
    return replace(
        scan,
        columns=tuple(scan.columns[place] for place in kept),
        output=tuple(scan.output[place] for place in kept),
    )


def scans_of(plan: Node) -> list[FileScan | SourceScan]:
    """The scans of a plan that its tasks share, from its top; their places in this list are their numbers."""
    return [
        node
        for node in walk(plan)
        if isinstance(node, SourceScan) or (isinstance(node, FileScan) and not node.whole)
    ]


def scanned_bytes(plan: Node) -> int:
    """How much a plan reads of files. What a source will find is not known, so it counts as more than any."""
    scans = scans_of(plan)
    if any(isinstance(scan, SourceScan) for scan in scans):
        return _UNKNOWN_BYTES
    return sum(read_bytes(scan) for scan in scans if isinstance(scan, FileScan))
