# SPDX-License-Identifier: Apache-2.0
"""Runs a filtered scan in micro-batches, so that the client gets the first rows early.

DataFusion's filter buffers rows until it has a few thousand. If splits are discovered slowly, that may take minutes. So
a result that is only a filtered scan runs in micro-batches: all rows read so far go through a plan of their own.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pyarrow as pa

from volley.events import OperatorMetrics
from volley.lower.memory import OperatorMemory
from volley.lower.operators import lower, select_result
from volley.lower.scope import Streamed, arrow_schema
from volley.lower.sessions import planning_context, running_context
from volley.lower.streams import Batches, StreamTable
from volley.plan.nodes import FeedInput, Filter, Node, walk
from volley.plan.traits import below_row_by_row
from volley.process.loop import Work, run_blocking
from volley.worker.fragment import Fragment, Give, ReadSoFar
from volley.worker.scan import Scans


def find_filtered_scan(plan: Node) -> FeedInput | None:
    """The fed scan of a plan of only filters and projections, if a filter would buffer its rows."""
    scan = below_row_by_row(plan)
    filtered = any(isinstance(node, Filter) for node in walk(plan))
    return scan if filtered and isinstance(scan, FeedInput) else None


class MicroBatches:
    """A `Running` plan over the scan `node`, one micro-batch after the other."""

    def __init__(
        self,
        plan: Node,
        node: FeedInput,
        scans: Scans,
        cores: int,
        memory: OperatorMemory | None,
        input_errors: list[Exception],
    ) -> None:
        self.input_errors = input_errors
        self._plan = plan
        self._node = node
        self._scans = scans
        self._cores = cores
        self._memory = memory
        self._metrics: dict[int, OperatorMetrics] = {}
        self._rows = self._size_bytes = 0

    @property
    def streams(self) -> int:
        return self._cores

    async def run(self, give: Give) -> None:
        async for micro_batch in self._scans.micro_batches(self._node):
            self._rows += sum(batch.num_rows for batch in micro_batch)
            self._size_bytes += sum(batch.nbytes for batch in micro_batch)
            with ExitStack() as resources:
                fragment = await run_blocking(Work.PLAN, self._fragment, micro_batch, resources)
                try:
                    await fragment.run(give)
                    self._add(fragment.metrics())
                finally:
                    fragment.drop()

    def metrics(self) -> tuple[OperatorMetrics, ...]:
        return tuple(self._metrics.values())

    def read_so_far(self) -> ReadSoFar:
        return ReadSoFar(self._rows, self._size_bytes)

    def drop(self) -> None:
        """Each micro-batch drops its own plan."""

    def _fragment(self, micro_batch: list[pa.RecordBatch], resources: ExitStack) -> Fragment:
        width = min(self._cores, len(micro_batch))

        def rows(_: Streamed) -> StreamTable:
            parts: list[Batches] = [partial(iter, micro_batch[number::width]) for number in range(width)]
            return StreamTable(arrow_schema(self._node.output), parts)

        planning = planning_context(self._cores, self._memory)
        frame = select_result(lower(self._plan, planning, rows, resources), self._plan)
        return Fragment(running_context(self._cores, self._memory), frame.execution_plan(), self.input_errors)

    def _add(self, metrics: tuple[OperatorMetrics, ...]) -> None:
        """Add up metrics by position: every micro-batch has the same plan."""
        for place, operator in enumerate(metrics):
            before = dict(self._metrics[place].values) if place in self._metrics else {}
            values = {
                name: before.get(name, 0) + dict(operator.values).get(name, 0)
                for name in before | dict(operator.values)
            }
            self._metrics[place] = OperatorMetrics(operator.name, tuple(values.items()))
