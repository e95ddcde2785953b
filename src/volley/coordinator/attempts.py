# SPDX-License-Identifier: Apache-2.0
"""How often a task is tried, and what its last failure becomes."""

from __future__ import annotations

from volley.errors import BlockMissing, DataError, EngineError, QueryCancelled, QueryError, TaskError
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
        """Count a failure and say whether to try again. Only what may pass is worth it: bad data stays bad.

        Lost input can be computed again if it is known whose output it was.
        """
        if failure.failure is Failure.LOST_INPUT:
            # Not this task's failure: counted apart, so that the loss of one worker does not use up its attempts.
            self._lost_inputs += 1
            return failure.lost is not None and self._lost_inputs < self._limit
        self._failures += 1
        return failure.failure.may_pass and self._failures < self._limit


def error_of(failure: TaskFailure) -> QueryError:
    """The failure that ends a query, as the error that its caller sees."""
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
            return TaskError(
                failure.attempt,
                f"{failure.failure} ({failure.code}): {failure.message}",
                hint=f"It was tried {tries} times." if tries > 1 else "",
            )
