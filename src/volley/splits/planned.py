# SPDX-License-Identifier: Apache-2.0
"""Reads the files that a split names, by a DataFusion plan that filters and projects on the way.

A file is checked as in a plan that scans it itself, because it is the same plan; only the split's part of it is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa

from volley.lower.operators import lower_split
from volley.lower.sessions import split_context
from volley.plan.expressions import Expression
from volley.plan.fed_scans import over_files
from volley.plan.nodes import Node
from volley.splits.files import decode


class PlannedReader:
    """A `SplitReader` of a captured scan: its splits as the rows of `plan`, which has no files of its own."""

    def __init__(self, plan: Node) -> None:
        self._plan = plan

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        """Columns and filters are the plan's. Raises DataError for a file that is not as it was planned."""
        piece = decode(split)
        context = split_context(piece.parts)
        with ExitStack() as resources:
            plan = lower_split(over_files(self._plan, piece.files), context, resources).execution_plan()
            # A file may have fewer parts than were asked for; those that there are have all its rows.
            for number in range(piece.part, plan.partition_count, piece.parts):
                for batch in context.execute(plan, number):
                    yield batch.to_pyarrow()
