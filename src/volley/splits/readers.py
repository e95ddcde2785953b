# SPDX-License-Identifier: Apache-2.0
"""Which source finds the splits of a scan, and which reader turns them into rows."""

from __future__ import annotations

from volley.plan.nodes import FileScan, Node, SourceScan
from volley.splits.datasource import DataSourceRows, DataSourceSplits
from volley.splits.files import FileSource
from volley.splits.planned import PlannedReader
from volley.splits.source import SplitReader, SplitSource
from volley.stages.limits import PlannerLimits


def source_of(scan: FileScan | SourceScan, tasks: int, limits: PlannerLimits) -> SplitSource:
    """The source of a scan that `tasks` share."""
    if isinstance(scan, FileScan):
        return FileSource(scan, tasks, limits)
    return DataSourceSplits(scan)


def reader_of(plan: Node) -> SplitReader:
    """The reader of splits for a plan that is run split by split (`plan.splits`)."""
    return DataSourceRows(plan) if isinstance(plan, SourceScan) else PlannedReader(plan)
