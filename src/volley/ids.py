# SPDX-License-Identifier: Apache-2.0
"""Identifiers, from the query down to the attempt. Every message, block and error carries them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from volley.fields import Count, Key


@dataclass(frozen=True, order=True)
class QueryId:
    value: Key

    @classmethod
    def new(cls) -> QueryId:
        return cls(secrets.token_hex(6))

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, order=True)
class StageId:
    """A stage of a query. The epoch increases when the stage is rolled back and runs again as a whole."""

    query: QueryId
    stage: Count
    epoch: Count = 0

    def __str__(self) -> str:
        return f"{self.query}/s{self.stage}" + (f"e{self.epoch}" if self.epoch else "")


@dataclass(frozen=True, order=True)
class TaskId:
    stage: StageId
    task: Count

    def __str__(self) -> str:
        return f"{self.stage}/t{self.task}"


@dataclass(frozen=True, order=True)
class AttemptId:
    """One attempt at a task. At most one attempt wins; the others leave nothing behind."""

    task: TaskId
    attempt: Count

    @property
    def query(self) -> QueryId:
        return self.task.stage.query

    def __str__(self) -> str:
        return f"{self.task}/a{self.attempt}"
