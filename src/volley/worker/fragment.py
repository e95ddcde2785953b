# SPDX-License-Identifier: Apache-2.0
"""A planned fragment while it runs: its output streams are polled concurrently, and dropping them stops it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import pyarrow as pa
from datafusion import ExecutionPlan, RecordBatchStream, SessionContext
from datafusion.plan import MetricsSet

from volley.events import OperatorMetrics
from volley.process.loop import Work, run_blocking

Give = Callable[[int, pa.RecordBatch], Awaitable[None]]
"""Receives a batch of one output stream; waits while the receiver is full."""


class ReadSoFar(NamedTuple):
    rows: int
    size_bytes: int


class Running(Protocol):
    """What a task runs. `input_errors` collects the errors of its inputs."""

    @property
    def input_errors(self) -> list[Exception]: ...

    @property
    def streams(self) -> int:
        """The number of output streams."""

    async def run(self, give: Give) -> None:
        """Run to the end. Passes every non-empty batch to `give`, with the number of its stream."""

    def metrics(self) -> tuple[OperatorMetrics, ...]: ...

    def read_so_far(self) -> ReadSoFar:
        """What its scans have read. May be called while it runs."""

    def drop(self) -> None:
        """Release everything that DataFusion holds for it."""


class Fragment:
    """A `Running` plan of DataFusion. `plan` is None if DataFusion proved that it has no rows."""

    def __init__(
        self, context: SessionContext, plan: ExecutionPlan | None, input_errors: list[Exception]
    ) -> None:
        self.input_errors = input_errors
        self._context = context
        self._plan = plan

    @property
    def streams(self) -> int:
        return self._plan.partition_count if self._plan is not None else 0

    async def run(self, give: Give) -> None:
        """Poll all streams concurrently. If one fails, all end."""
        if self._plan is None:
            return
        # Not on the event loop: it waits for a DataFusion thread, and those may wait for what the loop delivers.
        streams = await run_blocking(Work.PLAN, _start, self._context, self._plan)

        async def drain(output: int) -> None:
            async for batch in streams[output]:
                converted = batch.to_pyarrow()
                if converted.num_rows:
                    await give(output, converted)

        polls = [asyncio.create_task(drain(output)) for output in range(len(streams))]
        try:
            await asyncio.gather(*polls)
        finally:
            ended = asyncio.gather(*polls, return_exceptions=True)
            while polls:
                polls.pop().cancel()
            await ended
            # Tasks keep tracebacks, and a traceback keeps this frame alive. Drop both explicitly, or the streams and
            # their spill files stay until Python's garbage collector runs.
            del ended
            streams.clear()

    def metrics(self) -> tuple[OperatorMetrics, ...]:
        if self._plan is None:
            return ()
        named = ((text.split(":", 1)[0].strip(), found) for text, found in self._plan.collect_metrics())
        return tuple(OperatorMetrics(name, _values(name, found)) for name, found in named)

    def read_so_far(self) -> ReadSoFar:
        rows = size_bytes = 0
        for text, metrics in self._plan.collect_metrics() if self._plan is not None else ():
            if text.lstrip().startswith(_SCANS):
                rows += metrics.output_rows or 0
                size_bytes += sum(m.value or 0 for m in metrics.metrics() if m.name == "bytes_scanned")
        return ReadSoFar(rows, size_bytes)

    def drop(self) -> None:
        self._plan = None


def _start(context: SessionContext, plan: ExecutionPlan) -> list[RecordBatchStream]:
    return [context.execute(plan, number) for number in range(plan.partition_count)]


_SCANS = "DataSourceExec"
_SUMMED = ("output_rows", "elapsed_compute", "spilled_bytes", "spilled_rows", "spill_count")
_PRUNED = re.compile(r"row_groups_pruned_(?:statistics|bloom_filter)\{.*?\}=(\d+) total → (\d+) matched")


def _values(operator: str, metrics: MetricsSet) -> tuple[tuple[str, int], ...]:
    values = {name: getattr(metrics, name, None) or 0 for name in _SUMMED}
    if operator == _SCANS:
        values["pruned_row_groups"] = _pruned_row_groups(metrics)
    return tuple((name, value) for name, value in values.items() if value)


def _pruned_row_groups(metrics: MetricsSet) -> int:
    """The row groups that a scan did not read, because of their statistics or because of a join's keys.

    What statistics prune has no value, only a text. It is read from the text of all metrics: there are dozens for each
    file, and an object for each of them would cost more than everything else in a report.
    """
    by_keys = metrics.sum_by_name("row_groups_pruned_dynamic_filter") or 0
    return by_keys + sum(int(total) - int(matched) for total, matched in _PRUNED.findall(str(metrics)))
