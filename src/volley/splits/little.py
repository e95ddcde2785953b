"""Whether a query reads so little that one task had better do all of it.

A stage costs its messages, its planning and an exchange, however little it has to do, and a query that is spread has
several of them, one after the other. What counts is what is read of the files, not how large they are: a few columns of
a wide table are little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from volley.plan.nodes import FileScan, HeldRows, Join, LocalRows, Node, Range, SourceScan, walk
from volley.plan.subqueries import plans_in
from volley.stages.scans import OPEN_BYTES

_NUMBER_BYTES = 8


def is_little(plan: Node, limit_bytes: int) -> bool:
    """Whether the plan and its subqueries read no more than that, and multiply nothing."""
    left = float(limit_bytes)
    for bytes_read in _reads(plan):
        left -= bytes_read
        if left < 0:
            return False
    return limit_bytes > 0


def _reads(plan: Node) -> Iterator[float]:
    """What each source of a plan comes to, in bytes."""
    for node in walk(plan):
        match node:
            case FileScan():
                yield _read_bytes(node)
            case LocalRows():
                yield len(node.ipc)
            case Range():
                yield _NUMBER_BYTES * len(range(node.start, node.end, node.step))
            case SourceScan() | HeldRows():
                # Nobody knows.
                yield float("inf")
            case Join() if not node.left_keys:
                yield float("inf")
    for subquery in plans_in(plan):
        yield from _reads(subquery)


def _read_bytes(scan: FileScan) -> float:
    size_bytes = sum(file.size_bytes for file in scan.files)
    if not scan.files:
        return 0
    largest = max(scan.files, key=lambda file: file.size_bytes)
    from_path = {column.name for column in scan.partition_columns}
    names = {column.name.lower() for column in scan.output if column.name not in from_path}
    return len(scan.files) * OPEN_BYTES + size_bytes * _share(largest.path, names)


def _share(path: str, names: set[str]) -> float:
    """The part of a file that some columns are, by its first row group; all of it if that cannot be seen here."""
    try:
        sizes = _column_bytes(path, os.stat(path).st_mtime_ns)  # noqa: PTH116  # a Path costs more than the call
    except (OSError, pa.ArrowException):
        return 1.0
    total = sum(sizes.values())
    return sum(sizes.get(name, 0) for name in names) / total if total else 0.0


@lru_cache(maxsize=4096)
def _column_bytes(path: str, modified_ns: int) -> dict[str, int]:
    # The time is only there to make the entry of a rewritten file another one.
    metadata = pq.read_metadata(path)
    found: dict[str, int] = {}
    if metadata.num_row_groups:
        group = metadata.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            name = column.path_in_schema.split(".")[0].lower()
            found[name] = found.get(name, 0) + column.total_compressed_size
    return found
