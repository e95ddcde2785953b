# SPDX-License-Identifier: Apache-2.0
"""The stages that a server keeps in checkpoints: queries without a driver, whose chunks have second names.

    keep     link the chunks of committed attempts into a new query, then append it to the journal
    find the newest record of a stage, for callers that know its checkpoint's secret; extends its retention

A kept stage ends like any other query: its time is up, or it is removed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from volley.ids import QueryId
from volley.rpc.shuffle_messages import (
    FULL,
    QUERY_OVER,
    QUOTA,
    UNKNOWN_QUERY,
    CheckpointInfo,
    FindStage,
    FoundStage,
    KeepStage,
    QueryBegan,
    StageKept,
)
from volley.shuffle.checkpoint_ids import public_id
from volley.shuffle.service.directories import sync_directory
from volley.shuffle.service.journal import Journal
from volley.shuffle.service.ledger import Attempt, Ledger, Query, Refusal
from volley.shuffle.service.recovery import record_of
from volley.shuffle.service.storage import NoRoom, Storage

_log = logging.getLogger(__name__)

MOST_SECONDS = 30 * 86400.0
"""The longest retention of an unused stage, whatever a driver asks for."""


class ServerCheckpoints:
    """Not thread-safe: its owner locks it. `deadlines` are times of the monotonic clock, by query."""

    def __init__(
        self,
        ledger: Ledger,
        storage: Storage,
        journal: Journal,
        used: Counter[str],
        deadlines: dict[QueryId, float],
    ) -> None:
        self._ledger = ledger
        self._storage = storage
        self._journal = journal
        self._used = used
        self._deadlines = deadlines

    def keep(self, stage: KeepStage, quota_bytes: int) -> None:
        """Keep what is here of the attempts. Repeating the call has no effect."""
        if stage.kept in self._ledger.queries:
            self._ledger.query(stage.kept)
            return
        found = [attempt for id in stage.attempts if (attempt := self._ledger.committed(id)) is not None]
        queries = {id.query for id in stage.attempts}
        if len(queries) != 1:
            raise Refusal(UNKNOWN_QUERY, "a stage belongs to one query.")
        application = self._ledger.query(queries.pop()).application
        size_bytes = sum(attempt.held_bytes for attempt in found)
        if quota_bytes and self._used[application] + size_bytes > quota_bytes:
            raise Refusal(QUOTA, f"{application} has used its {quota_bytes} bytes.")
        now = time.time()
        until = now + min(stage.seconds, MOST_SECONDS)
        self._ledger.begin(stage.kept, application)
        try:
            self._journal.append(QueryBegan(stage.kept, application))
            for attempt in found:
                self._link(attempt, stage.kept)
                self._used[application] += attempt.held_bytes
            record = StageKept(stage.kept, stage.checkpoint, stage.key, stage.record, until, now)
            self._journal.append(record)
        except (NoRoom, OSError) as error:
            # Not kept: the owner removes what was linked when this deadline is over.
            self._deadlines[stage.kept] = time.monotonic()
            raise Refusal(FULL, f"{stage.kept} cannot be kept: {error}.") from error
        self._ledger.query(stage.kept).kept = record
        self._deadlines[stage.kept] = time.monotonic() + until - time.time()

    def _link(self, attempt: Attempt, kept: QueryId) -> None:
        assert attempt.blocks is not None, "it has committed"
        chunks = {place: self._storage.link(stored, kept) for place, stored in attempt.chunks.items()}
        same = self._ledger.keep(attempt, kept, chunks)
        for directory in self._storage.directories:
            with suppress(FileNotFoundError):
                sync_directory(directory / kept.value)
        self._journal.append(record_of(same, attempt.blocks.values()))

    def find(self, wanted: FindStage) -> FoundStage:
        """The newest record of a stage. An earlier one may be of lost outputs: it is not kept for longer."""
        for query in reversed(self._ledger.checkpoint(wanted.checkpoint)):
            if query.kept is not None and query.kept.key == wanted.key:
                self._extend(query, query.kept, min(wanted.seconds, MOST_SECONDS))
                return FoundStage(query.kept.record, query.kept.kept_at)
        return FoundStage()

    def _extend(self, query: Query, kept: StageKept, seconds: float) -> None:
        self._deadlines[query.id] = max(self._deadlines[query.id], time.monotonic() + seconds)
        until = time.time() + seconds
        if until <= kept.until:
            return
        query.kept = replace(kept, until=until)
        try:
            self._journal.append(query.kept)
        except OSError as error:
            # Return it anyway. After a restart the server may remove it earlier.
            _log.warning("%s: its new deadline could not be written to the journal: %s", query.id, error)

    def list(self) -> tuple[CheckpointInfo, ...]:
        kept = [(query, query.kept) for query in self._ledger.queries.values() if query.kept is not None]
        stages: Counter[str] = Counter()
        size_bytes: Counter[str] = Counter()
        left: dict[str, float] = {}
        for query, record in kept:
            id = public_id(record.checkpoint)
            stages[id] += 1
            size_bytes[id] += sum(attempt.held_bytes for attempt in query.attempts.values())
            left[id] = max(left.get(id, 0.0), self._deadlines[query.id] - time.monotonic())
        return tuple(CheckpointInfo(id, stages[id], size_bytes[id], left[id]) for id in sorted(stages))

    def drop(self, checkpoint: str, end: Callable[[QueryId, str], None]) -> int:
        """End all stages of a checkpoint; their number."""
        queries = [query.id for query in self._ledger.checkpoint(checkpoint)]
        for query in queries:
            end(query, QUERY_OVER)
        return len(queries)
