# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a split through a DataFusion plan that also filters and projects.

It is the same plan as for an unsplit scan, with the same checks of each file; only the split's part of it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa

from volley.lower.local_copies import use_local_copies
from volley.lower.operators import lower_split
from volley.lower.sessions import split_context
from volley.plan.expressions import Expression
from volley.plan.fed_scans import with_files
from volley.plan.nodes import Node
from volley.splits.files import decode


class PlannedReader:
    """A `SplitReader` of a captured file scan. `plan` is the scan without files; each split supplies its own."""

    def __init__(self, plan: Node) -> None:
        self._plan = plan

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        """Applies the columns and filters of the plan. Raises DataError for a file that changed since planning."""
        piece = decode(split)
        context = split_context(piece.parts)
        with ExitStack() as resources:
            files = with_files(self._plan, piece.files)
            if piece.parts == 1:
                # A copy is divided otherwise than a stream, and another process may read the other parts.
                files = use_local_copies(files, resources)
            plan = lower_split(files, context, resources, piece.parts).execution_plan()
            # DataFusion may make fewer parts than requested; together they still have all rows.
            for number in range(piece.part, plan.partition_count, piece.parts):
                for batch in context.execute(plan, number):
                    yield batch.to_pyarrow()
