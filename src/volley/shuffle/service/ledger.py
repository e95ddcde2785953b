# SPDX-License-Identifier: Apache-2.0
"""What a server knows of queries, attempts and commits, and whom it refuses. Memory only: no chunk, no file, no clock.

    query      begun -> over (released, or its lease expired)             late callers are told which
    epoch      of a stage only rises; calls of earlier ones are refused
    attempt    open -> committed | gone

Of attempts at the same task that were open at the same time, the first to commit wins, and an attempt never passes one
with a higher number that has committed. One that began after a commit may still commit: its coordinator knows that
commit, and has given it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from volley.ended_queries import EndedQueries
from volley.errors import QueryError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.service import (
    ATTEMPT_CLOSED,
    COMMIT_LOST,
    LEASE_EXPIRED,
    STALE_EPOCH,
    UNKNOWN_QUERY,
    CommittedBlock,
)
from volley.shuffle.service.storage import Stored

# Enough to refuse the late callers of any query that may still have some.
_REMEMBERED_QUERIES = 4096


class Refusal(QueryError):
    """What a caller is told, by its code."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass
class Attempt:
    """`begun` and `committed_at` are moments on the ledger's own clock, which counts calls."""

    id: AttemptId
    begun: int
    chunks: dict[tuple[int, int], Stored] = field(default_factory=dict)
    reserved_bytes: int = 0
    blocks: dict[int, CommittedBlock] | None = None
    committed_at: int = 0

    @property
    def held_bytes(self) -> int:
        """Kept and promised."""
        return self.reserved_bytes + sum(stored.size_bytes for stored in self.chunks.values())


@dataclass
class Query:
    id: QueryId
    application: str
    epochs: dict[int, int] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    closed: set[AttemptId] = field(default_factory=set)


class Ledger:
    """Guarded by whoever has it. Raises `Refusal` and changes nothing when a call is not to be."""

    def __init__(self) -> None:
        self.queries: dict[QueryId, Query] = {}
        self._over = EndedQueries(_REMEMBERED_QUERIES)
        self._clock = 0

    # --------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId, application: str) -> bool:
        """Whether the query is new. Refused when it was here and is over."""
        if query in self._over:
            raise self._over_refusal(query)
        if query in self.queries:
            return False
        self.queries[query] = Query(query, application)
        return True

    def end(self, query: QueryId, code: str) -> Query | None:
        """The query is over, with what is then to be freed; late callers are told `code`."""
        self._over.add(query, code)
        return self.queries.pop(query, None)

    def over(self) -> Iterator[tuple[QueryId, str]]:
        yield from self._over

    def query(self, query: QueryId) -> Query:
        if query in self.queries:
            return self.queries[query]
        if query in self._over:
            raise self._over_refusal(query)
        raise Refusal(UNKNOWN_QUERY, f"query {query} has not begun here.")

    def _over_refusal(self, query: QueryId) -> Refusal:
        code = self._over[query]
        why = "its driver did not show that it lives" if code == LEASE_EXPIRED else "it was released"
        return Refusal(code, f"query {query} is over: {why}.")

    # -------------------------------------------------------------------------------------------- attempts

    def knows(self, id: AttemptId) -> bool:
        query = self.queries.get(id.query)
        return query is not None and id in query.attempts

    def open(self, id: AttemptId) -> Attempt:
        """An attempt that may write, which begins here with its first call."""
        query = self.query(id.query)
        self._fence(query, id.task.stage)
        attempt = query.attempts.get(id)
        if id in query.closed or (attempt is not None and attempt.blocks is not None):
            raise Refusal(ATTEMPT_CLOSED, f"{id} is closed.")
        if attempt is None:
            self._clock += 1
            attempt = Attempt(id, self._clock)
            self._check_rivals(query, attempt)
            query.attempts[id] = attempt
        return attempt

    def committed(self, id: AttemptId) -> Attempt | None:
        """The attempt, when it has committed and may be read."""
        query = self.query(id.query)
        self._fence(query, id.task.stage)
        attempt = query.attempts.get(id)
        return attempt if attempt is not None and attempt.blocks is not None else None

    def check_commit(self, attempt: Attempt) -> None:
        """Refused when another attempt has won. An attempt stays open until `commit`."""
        query = self.query(attempt.id.query)
        if query.attempts.get(attempt.id) is not attempt:
            raise Refusal(ATTEMPT_CLOSED, f"{attempt.id} is closed.")
        self._check_rivals(query, attempt)

    def commit(self, attempt: Attempt, blocks: dict[int, CommittedBlock]) -> None:
        self._clock += 1
        attempt.blocks = blocks
        attempt.committed_at = self._clock

    def abort(self, id: AttemptId) -> Attempt | None:
        """What is to be freed. A committed attempt stays."""
        query = self.query(id.query)
        attempt = query.attempts.get(id)
        if attempt is not None and attempt.blocks is not None:
            return None
        query.closed.add(id)
        return query.attempts.pop(id, None)

    def _fence(self, query: Query, stage: StageId) -> None:
        newest = query.epochs.get(stage.stage, 0)
        if stage.epoch < newest:
            raise Refusal(STALE_EPOCH, f"{stage} is in epoch {newest} by now.")
        query.epochs[stage.stage] = stage.epoch

    def stale(self, stage: StageId) -> list[Attempt]:
        """The attempts of earlier epochs of a stage, which nobody may read any more. They are forgotten here."""
        query = self.queries[stage.query]
        old = [
            attempt
            for attempt in query.attempts.values()
            if attempt.id.task.stage.stage == stage.stage and attempt.id.task.stage.epoch < stage.epoch
        ]
        for attempt in old:
            del query.attempts[attempt.id]
        return old

    def _check_rivals(self, query: Query, attempt: Attempt) -> None:
        for rival in _committed_of(query, attempt.id.task):
            if rival.id.attempt > attempt.id.attempt or rival.committed_at > attempt.begun:
                raise Refusal(COMMIT_LOST, f"{rival.id} was committed before {attempt.id}.")


def _committed_of(query: Query, task: TaskId) -> Iterator[Attempt]:
    for attempt in query.attempts.values():
        if attempt.id.task == task and attempt.blocks is not None:
            yield attempt
