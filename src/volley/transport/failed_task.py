# SPDX-License-Identifier: Apache-2.0
"""An attempt that never started, because its worker did not accept it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa

from volley.ids import AttemptId
from volley.rpc.messages import SplitBatch, SplitRequest, TaskFailure


class FailedTask:
    """A `RunningTask` that has already failed."""

    def __init__(self, failure: TaskFailure) -> None:
        self._failure = failure

    @property
    def attempt(self) -> AttemptId:
        return self._failure.attempt

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        return
        yield

    async def split_requests(self) -> AsyncIterator[SplitRequest]:
        return
        yield

    async def give(self, splits: SplitBatch) -> None:
        pass

    async def done(self) -> TaskFailure:
        return self._failure

    async def cancel(self) -> None:
        pass
