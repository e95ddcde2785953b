# SPDX-License-Identifier: Apache-2.0
"""A transport that reports when the client has the first rows of an attempt, before it hands over the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from volley.ids import AttemptId
from volley.rpc.messages import TaskSpec
from volley.transport.base import RunningTask, Transport

OnRows = Callable[[AttemptId, str], None]


class AfterFirstRows:
    """Calls `on_rows` with the attempt and its worker, for every attempt that has handed over its first batch."""

    def __init__(self, transport: Transport, on_rows: OnRows) -> None:
        self._transport = transport
        self._on_rows = on_rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def start(self, worker: str, task: TaskSpec) -> RunningTask:
        running = await self._transport.start(worker, task)
        batches = running.batches

        async def watched() -> AsyncIterator[pa.RecordBatch]:
            is_first = True
            async for batch in batches():
                yield batch
                if is_first:
                    self._on_rows(task.attempt, worker)
                is_first = False

        running.batches = watched  # type: ignore[method-assign]
        return running
