# SPDX-License-Identifier: Apache-2.0
"""Identifiers, from the query down to the attempt. Every message, block and error carries them."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from volley.field_types import Count, Key, Secret


@dataclass(frozen=True, order=True)
class QueryId:
    """`value` names a query everywhere. `key` is a secret of the driver and of the processes that work for the query.

    A worker or shuffle server remembers the key with which a query began. Only processes that present it may read,
    write or release the query's data, so sessions that share a token cannot touch each other's.
    """

    value: Key
    key: Secret = field(default="", repr=False, compare=False)

    @classmethod
    def new(cls) -> QueryId:
        return cls(secrets.token_hex(6), secrets.token_hex(16))

    def has_key_of(self, known: QueryId) -> bool:
        """Whether this has the name and the key of the query `known`."""
        return self.value == known.value and hmac.compare_digest(self.key, known.key)

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
