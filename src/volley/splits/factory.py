# SPDX-License-Identifier: Apache-2.0
"""Chooses the source that finds the splits of a scan, and the reader that turns them into rows."""

from __future__ import annotations

from volley.plan.nodes import FileScan, Node, SourceScan
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.planned_reader import PlannedReader
from volley.splits.source import SplitReader, SplitSource
from volley.stages.limits import PlannerLimits


def source_of(scan: FileScan | SourceScan, tasks: int, limits: PlannerLimits) -> SplitSource:
    """The split source of a scan that `tasks` tasks share."""
    if isinstance(scan, FileScan):
        return FileSource(scan, tasks, limits)
    return DataSourceSplits(scan)


def reader_of(plan: Node) -> SplitReader:
    """The split reader of a fed scan's plan (`FeedInput.plan`)."""
    return DataSourceRows(plan) if isinstance(plan, SourceScan) else PlannedReader(plan)
