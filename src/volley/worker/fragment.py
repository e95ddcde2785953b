# SPDX-License-Identifier: Apache-2.0
"""A planned fragment while it runs: its outputs are polled together, and stop when they are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pyarrow as pa
from datafusion import ExecutionPlan, SessionContext

from volley.events import OperatorMetrics

Give = Callable[[int, pa.RecordBatch], Awaitable[None]]
"""Takes a batch of one output of the plan; waits when its receiver is full."""


class Running(Protocol):
    """What a task runs. `input_errors` fills while it does with what went wrong in reading its inputs."""

    @property
    def input_errors(self) -> list[Exception]: ...

    @property
    def streams(self) -> int:
        """How many outputs it has."""

    async def run(self, give: Give) -> None:
        """Give every batch that has rows, with the number of its output."""

    def metrics(self) -> tuple[OperatorMetrics, ...]: ...

    def drop(self) -> None:
        """Let go of everything that DataFusion holds for it."""


class Fragment:
    """A planned fragment. `plan` is None when DataFusion proved that it has no rows.

    `input_errors` fills while it runs with what went wrong in reading its inputs.
    """

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
        """Poll all outputs together and give every batch that has rows; ends them all when one fails."""
        if self._plan is None:
            return
        streams = [self._context.execute(self._plan, i) for i in range(self._plan.partition_count)]

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
            # A traceback keeps this frame alive, and tasks keep tracebacks. Let go of both by hand, or the streams, and
            # what they spilled, stay until Python's collector comes by.
            del ended
            streams.clear()

    def metrics(self) -> tuple[OperatorMetrics, ...]:
        if self._plan is None:
            return ()
        return tuple(
            OperatorMetrics(text.split(":", 1)[0].strip(), _values(metrics))
            for text, metrics in self._plan.collect_metrics()
        )

    def drop(self) -> None:
        self._plan = None


_SUMMED = ("output_rows", "elapsed_compute", "spilled_bytes", "spilled_rows", "spill_count")


def _values(metrics: object) -> tuple[tuple[str, int], ...]:
    values = ((name, getattr(metrics, name, None)) for name in _SUMMED)
    return tuple((name, value) for name, value in values if value)
