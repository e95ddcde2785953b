"""Which source finds the units of a scan, and which reader turns them into rows."""

from __future__ import annotations

from volley.plan.nodes import FileScan, Node, SourceScan
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.parquet import PlannedReader
from volley.splits.source import SplitReader, SplitSource


def source_of(scan: FileScan | SourceScan, tasks: int) -> SplitSource:
    """The source of a scan that `tasks` share."""
    if isinstance(scan, FileScan):
        return FileSource(scan, tasks)
    return DataSourceSplits(scan)


def reader_of(plan: Node) -> SplitReader:
    """The reader of units for a plan that is run unit by unit (`plan.units`)."""
    return DataSourceRows(plan) if isinstance(plan, SourceScan) else PlannedReader(plan)
