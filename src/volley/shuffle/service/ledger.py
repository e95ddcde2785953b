# SPDX-License-Identifier: Apache-2.0
"""The state of queries, attempts and commits on a server, and the rules for refusing calls. No I/O and no clock.

    query      begun -> over (released, or its lease expired)             late callers are told which
    epoch      of a stage only rises; calls from earlier epochs are refused
    attempt    open -> committed | gone

A query has the key with which it began, and every call about it must show that key.

Of attempts at the same task that are open at the same time, the first to commit wins. An attempt cannot commit after
one with a higher number. An attempt that began after a commit may still commit: its coordinator knew of that commit
and has discarded it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from volley.ended_queries import EndedQueries
from volley.errors import QueryError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.rpc.shuffle_messages import (
    ATTEMPT_CLOSED,
    COMMIT_LOST,
    LEASE_EXPIRED,
    STALE_EPOCH,
    UNKNOWN_QUERY,
    CommittedBlock,
    StageKept,
)
from volley.shuffle.service.storage import Stored

# Enough to refuse late calls for any query that may still get some.
_REMEMBERED_QUERIES = 4096


class Refusal(QueryError):
    """A refused call; `code` tells the caller why."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass
class Attempt:
    """`begun` and `committed_at` are logical times: the ledger counts calls."""

    id: AttemptId
    begun: int
    chunks: dict[tuple[int, int], Stored] = field(default_factory=dict)
    reserved_bytes: int = 0
    blocks: dict[int, CommittedBlock] | None = None
    committed_at: int = 0

    @property
    def held_bytes(self) -> int:
        """Bytes stored and reserved."""
        return self.reserved_bytes + sum(stored.size_bytes for stored in self.chunks.values())


@dataclass
class Query:
    id: QueryId
    application: str
    epochs: dict[int, int] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    closed: set[AttemptId] = field(default_factory=set)
    kept: StageKept | None = None
    """Set if it is a stage that is kept in a checkpoint. It has no driver."""


class Ledger:
    """Not thread-safe: its owner locks it. A refused call raises `Refusal` and changes nothing."""

    def __init__(self) -> None:
        self.queries: dict[QueryId, Query] = {}
        self._over = EndedQueries(_REMEMBERED_QUERIES)
        self._clock = 0

    # --------------------------------------------------------------------------------------------- queries

    def begin(self, query: QueryId, application: str) -> bool:
        """Register a query. Returns whether it is new. Refused if it is over."""
        if query in self._over:
            raise self._over_refusal(query)
        if query in self.queries:
            self.query(query)
            return False
        self.queries[query] = Query(query, application)
        return True

    def undo_begin(self, query: QueryId) -> None:
        """Forget a query that has just begun."""
        del self.queries[query]

    def end(self, query: QueryId, code: str) -> Query | None:
        """End a query. Returns what must be freed. Late callers are refused with `code`."""
        self._over.add(query, code)
        return self.queries.pop(query, None)

    def over(self) -> Iterator[tuple[QueryId, str]]:
        yield from self._over

    def query(self, query: QueryId) -> Query:
        """A query that has begun. Callers without its key are told that there is no such query."""
        known = self.queries.get(query)
        if known is not None and query.has_key_of(known.id):
            return known
        if query in self._over:
            raise self._over_refusal(query)
        raise Refusal(UNKNOWN_QUERY, f"query {query} has not begun here.")

    def _over_refusal(self, query: QueryId) -> Refusal:
        code = self._over[query]
        why = "its driver did not renew its lease" if code == LEASE_EXPIRED else "it was released"
        return Refusal(code, f"query {query} is over: {why}.")

    def keep(self, attempt: Attempt, kept: QueryId, chunks: dict[tuple[int, int], Stored]) -> Attempt:
        """Add a committed attempt to a kept query: the same output, with its own `chunks`."""
        task = attempt.id.task
        id = replace(attempt.id, task=replace(task, stage=replace(task.stage, query=kept)))
        same = Attempt(id, attempt.begun, chunks, 0, attempt.blocks, attempt.committed_at)
        self.queries[kept].attempts[id] = same
        return same

    def checkpoint(self, checkpoint: str) -> list[Query]:
        """The kept stages of a checkpoint, the newest last."""
        return [
            query
            for query in self.queries.values()
            if query.kept is not None and hmac.compare_digest(query.kept.checkpoint, checkpoint)
        ]

    # -------------------------------------------------------------------------------------------- attempts

    def knows(self, id: AttemptId) -> bool:
        query = self.queries.get(id.query)
        return query is not None and id in query.attempts

    def open(self, id: AttemptId) -> Attempt:
        """An attempt that may write. It begins with its first call."""
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
        """The attempt, if it has committed and may be read."""
        query = self.query(id.query)
        self._fence(query, id.task.stage)
        attempt = query.attempts.get(id)
        return attempt if attempt is not None and attempt.blocks is not None else None

    def replica(self, id: AttemptId) -> Attempt:
        """A committed attempt that gets another block. Begins here if the server has none of it."""
        if (attempt := self.committed(id)) is not None:
            return attempt
        return self.open(id)

    def check_commit(self, attempt: Attempt) -> None:
        """Refuse the attempt if another one has won. It stays open until `commit`."""
        query = self.query(attempt.id.query)
        if query.attempts.get(attempt.id) is not attempt:
            raise Refusal(ATTEMPT_CLOSED, f"{attempt.id} is closed.")
        self._check_rivals(query, attempt)

    def commit(self, attempt: Attempt, blocks: dict[int, CommittedBlock]) -> None:
        self._clock += 1
        attempt.blocks = blocks
        attempt.committed_at = self._clock

    def abort(self, id: AttemptId) -> Attempt | None:
        """Abort an attempt. Returns what must be freed. A committed attempt stays."""
        query = self.query(id.query)
        attempt = query.attempts.get(id)
        if attempt is not None and attempt.blocks is not None:
            return None
        query.closed.add(id)
        return query.attempts.pop(id, None)

    def _fence(self, query: Query, stage: StageId) -> None:
        newest = query.epochs.get(stage.stage, 0)
        if stage.epoch < newest:
            raise Refusal(STALE_EPOCH, f"{stage} is now in epoch {newest}.")
        query.epochs[stage.stage] = stage.epoch

    def forget_stale(self, stage: StageId) -> list[Attempt]:
        """Remove and return the attempts of earlier epochs of a stage. They may no longer be read."""
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
