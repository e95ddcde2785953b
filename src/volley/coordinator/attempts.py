# SPDX-License-Identifier: Apache-2.0
"""The retry policy of a task, and the error that its final failure becomes."""

from __future__ import annotations

from volley.errors import (
    BlockMissing,
    DataError,
    EngineError,
    OperatorMemoryExhausted,
    QueryCancelled,
    QueryError,
    TaskError,
)
from volley.ids import AttemptId, TaskId
from volley.rpc.messages import Failure, TaskFailure


class Attempts:
    """Numbers the attempts at one task, up to `limit`."""

    def __init__(self, task: TaskId, limit: int) -> None:
        self._task = task
        self._limit = limit
        self._made = 0
        self._failures = 0
        self._lost_inputs = 0

    def next(self) -> AttemptId:
        attempt = AttemptId(self._task, self._made)
        self._made += 1
        return attempt

    def may_retry(self, failure: TaskFailure) -> bool:
        """Count a failure and return whether to retry. Only transient failures are retried: bad data stays bad.

        A lost input can be recomputed if the attempt that produced it is known.
        """
        if failure.failure is Failure.LOST_INPUT:
            # Counted separately: it is not this task's fault, and one lost worker must not use up its attempts.
            self._lost_inputs += 1
            return failure.lost is not None and self._lost_inputs < self._limit
        self._failures += 1
        return failure.failure.may_pass and self._failures < self._limit


def error_of(failure: TaskFailure) -> QueryError:
    """Convert the failure that ends a query into the error that the user sees."""
    match failure.failure:
        case Failure.DATA:
            return DataError(f"{failure.attempt}: {failure.message}")
        case Failure.LOST_INPUT:
            return BlockMissing(f"{failure.attempt}: {failure.message}")
        case Failure.INTERNAL if failure.code == EngineError.code:
            return EngineError(f"{failure.attempt}: {failure.message}")
        case Failure.CANCELLED:
            return QueryCancelled(f"{failure.attempt}: {failure.message}")
        case _:
            tries = failure.attempt.attempt + 1
            is_memory = failure.code == OperatorMemoryExhausted.code
            return (OperatorMemoryExhausted if is_memory else TaskError)(
                failure.attempt,
                f"{failure.failure} ({failure.code}): {failure.message}",
                hint=f"It was tried {tries} times." if tries > 1 else "",
            )
