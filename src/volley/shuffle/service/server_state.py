# SPDX-License-Identifier: Apache-2.0
"""The state of one shuffle server: ledger, chunks and journal. May be used from any thread.

    reserve -> push, push ...      reserve room, then push chunks; a repeated chunk is counted once
    commit                         write chunks to files, sync them, append to the journal, then acknowledge
    frames                         send committed blocks; readers verify them

A server that starts in the directories of a killed one restores every acknowledged commit from the journal.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.ids import AttemptId, QueryId
from volley.process.log_format import about
from volley.rpc.shuffle_messages import (
    DAMAGED_ON_WAY,
    DRAINING,
    FULL,
    LEASE_EXPIRED,
    NOT_RESERVED,
    QUERY_OVER,
    QUOTA,
    UNKNOWN_QUERY,
    CheckpointList,
    CommitAttempt,
    FindStage,
    FoundStage,
    KeepAlive,
    KeepStage,
    Kept,
    PushChunks,
    QueryBegan,
    QueryEnded,
    ServiceHealth,
)
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.chunks import checksum_of
from volley.shuffle.frames import Header, Kind, frame, split_chunk
from volley.shuffle.service.checkpoints import ServerCheckpoints
from volley.shuffle.service.counts import Counts
from volley.shuffle.service.directories import lock_directory
from volley.shuffle.service.journal import Journal
from volley.shuffle.service.ledger import Attempt, Ledger, Query, Refusal
from volley.shuffle.service.push_validation import check_complete, split_payload
from volley.shuffle.service.recovery import record_of, records_of, recover
from volley.shuffle.service.replicas import Replicas
from volley.shuffle.service.storage import NoRoom, Storage, Stored

_log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ShuffleServerSettings:
    """`quota_bytes` is the limit per application; 0 for none. A journal of up to `compact_bytes` is not compacted."""

    directories: tuple[Path, ...]
    memory_bytes: int
    watermark: float = 0.8
    quota_bytes: int = 0
    lease_seconds: float = LEASE_SECONDS
    in_memory_commits: bool = False
    compact_bytes: int = 2**20


class ShuffleServerState:
    def __init__(self, name: str, settings: ShuffleServerSettings) -> None:
        self.name = name
        self._settings = settings
        self._locked = [lock_directory(directory) for directory in settings.directories]
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._storage = Storage(
            settings.directories, settings.memory_bytes, settings.watermark, settings.in_memory_commits
        )
        self._journal = Journal(settings.directories[0] / "journal")
        self._used: Counter[str] = Counter()
        self._deadlines: dict[QueryId, float] = {}
        self._compacted_bytes = 0
        self._draining = False
        self._started = time.monotonic()
        self.counts = Counts()
        recover(self._journal.read(), self._ledger, self._storage)
        if self._journal.damaged:
            _log.error("the journal has %d damaged records; their contents are lost", self._journal.damaged)
        for query in self._ledger.queries.values():
            self._used[query.application] += sum(a.held_bytes for a in query.attempts.values())
            left = query.kept.until - time.time() if query.kept is not None else settings.lease_seconds
            self._deadlines[query.id] = time.monotonic() + left
        self.kept = ServerCheckpoints(self._ledger, self._storage, self._journal, self._used, self._deadlines)
        self.replicas = Replicas(
            self._lock, self._ledger, self._storage, self._journal, self._used, settings.quota_bytes
        )
        self._journal.replace(records_of(self._ledger))

    # --------------------------------------------------------------------------------------------- queries

    def keep_alive(self, message: KeepAlive) -> Kept:
        expired = []
        with self._lock:
            for query in message.queries:
                # The name becomes a directory.
                if not _NAME.fullmatch(query.value):
                    raise Refusal(UNKNOWN_QUERY, f"{query.value!r} is not a valid query id.")
                try:
                    self._begin(query, message.application)
                except Refusal as refusal:
                    if refusal.code == LEASE_EXPIRED:
                        expired.append(query)
                else:
                    self._deadlines[query] = time.monotonic() + self._settings.lease_seconds
        return Kept(self._settings.lease_seconds, tuple(expired), self._draining)

    def _begin(self, query: QueryId, application: str) -> None:
        if not self._ledger.begin(query, application):
            return
        try:
            self._journal.append(QueryBegan(query, application))
        except OSError as error:
            # Without this record a restart would drop what the query commits. Its driver asks again.
            self._ledger.undo_begin(query)
            raise Refusal(FULL, f"{self.name} cannot write its journal: {error}.") from error

    def release(self, query: QueryId) -> None:
        with self._lock:
            if query in self._ledger.queries:
                self._ledger.query(query)
        self._end(query, QUERY_OVER)

    def expire(self, now: float | None = None) -> None:
        """End the queries whose lease has expired by `now`, a time of the monotonic clock."""
        by = time.monotonic() if now is None else now
        with self._lock:
            late = [query for query, deadline in self._deadlines.items() if deadline < by]
            kept = {query for query in late if self._ledger.queries[query].kept is not None}
        for query in late:
            if query in kept:
                _log.info("%s was kept in a checkpoint; its time is up", query, extra=about(query))
                self._end(query, QUERY_OVER)
                continue
            _log.warning(
                "query %s: its driver did not renew its lease; its data is removed", query, extra=about(query)
            )
            self._end(query, LEASE_EXPIRED)
            self.counts.add("leases_expired")

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases after this process was paused: it could not receive renewals meanwhile."""
        with self._lock:
            for query in self._deadlines:
                self._deadlines[query] += seconds

    def _end(self, query: QueryId, code: str) -> None:
        with self._lock:
            known = self._ledger.end(query, code)
            self._deadlines.pop(query, None)
            if known is None:
                return
            # Journal first, then remove: a server killed in between must not serve half of the query.
            try:
                self._journal.append(QueryEnded(query, code))
            except OSError as error:
                # Free the files even if the disk is full. After a restart the query has no files, and expires.
                _log.error(
                    "the end of query %s could not be written to the journal: %s",
                    query,
                    error,
                    extra=about(query),
                )
            self._forget(query, known)
            self._compact()

    def _forget(self, query: QueryId, known: Query) -> None:
        for attempt in known.attempts.values():
            self._free(attempt, known.application)
        self._storage.drop_query(query)

    def _compact(self) -> None:
        """Compact the journal when most of it is obsolete; the longer it is, the less often."""
        if self._journal.size_bytes > max(self._settings.compact_bytes, 2 * self._compacted_bytes):
            try:
                self._journal.replace(records_of(self._ledger))
            except OSError as error:
                _log.warning("the journal could not be compacted: %s", error)
            self._compacted_bytes = self._journal.size_bytes

    # --------------------------------------------------------------------------------------------- writing

    def reserve(self, id: AttemptId, size_bytes: int) -> int:
        """Reserve room for an attempt. Returns the bytes that it may send; 0 if there is no room now."""
        with self._lock:
            if self._draining and not self._ledger.knows(id):
                raise Refusal(DRAINING, f"{self.name} takes no new attempts.")
            attempt = self._open(id)
            application = self._ledger.query(id.query).application
            quota = self._settings.quota_bytes
            if quota and self._used[application] + size_bytes > quota:
                raise Refusal(QUOTA, f"{application} has used its {quota} bytes on {self.name}.")
            try:
                granted = self._storage.reserve(size_bytes)
            except NoRoom as error:
                raise Refusal(FULL, f"{self.name} has no room left on {error}.") from error
            if not granted:
                self.counts.add("reservations_deferred")
                return 0
            attempt.reserved_bytes += size_bytes
            self._used[application] += size_bytes
            return size_bytes

    def push(self, message: PushChunks, payload: pa.Buffer) -> None:
        """Store chunks. Chunks that have already arrived are ignored."""
        chunks = split_payload(message, payload)
        with self._lock:
            attempt = self._open(message.attempt)
            for chunk, data in chunks:
                known = attempt.chunks.get((chunk.partition, chunk.sequence))
                if known is not None:
                    if known.checksum != chunk.checksum:
                        raise Refusal(
                            DAMAGED_ON_WAY, f"{message.attempt} sent two different chunks under one number."
                        )
                    self.counts.add("chunks_repeated")
                    continue
                if attempt.reserved_bytes < chunk.size_bytes:
                    raise Refusal(NOT_RESERVED, f"{message.attempt} has no room reserved on {self.name}.")
                attempt.reserved_bytes -= chunk.size_bytes
                stage = message.attempt.task.stage
                stored = self._storage.put(stage, chunk.partition, data, chunk.checksum)
                attempt.chunks[chunk.partition, chunk.sequence] = stored
                self.counts.add("chunks_pushed")
                self.counts.add("bytes_pushed", chunk.size_bytes)

    def commit(self, message: CommitAttempt) -> None:
        """Publish an attempt. Repeating the same commit is allowed; a different one is refused."""
        blocks = {block.partition: block for block in message.blocks}
        with self._lock:
            done = self._ledger.committed(message.attempt)
            if done is not None and done.blocks == blocks:
                return
            attempt = self._open(message.attempt)
            self._ledger.check_commit(attempt)
            check_complete(attempt, blocks)
        try:
            self._storage.keep(attempt.chunks.values())
        except (NoRoom, OSError) as error:
            raise Refusal(FULL, f"{self.name} cannot keep {message.attempt}: {error}.") from error
        with self._lock:
            # Another attempt may have won meanwhile, or the query may be over.
            self._ledger.check_commit(attempt)
            self._unreserve(attempt)
            try:
                self._journal.append(record_of(attempt, blocks.values()))
            except OSError as error:
                raise Refusal(FULL, f"{self.name} cannot write its journal: {error}.") from error
            self._ledger.commit(attempt, blocks)
            self.counts.add("commits")

    def abort(self, id: AttemptId) -> None:
        with self._lock:
            application = self._ledger.query(id.query).application
            attempt = self._ledger.abort(id)
            if attempt is not None:
                self._free(attempt, application)

    def _open(self, id: AttemptId) -> Attempt:
        attempt = self._ledger.open(id)
        if id.task.stage.epoch:
            application = self._ledger.query(id.query).application
            for stale in self._ledger.forget_stale(id.task.stage):
                self._free(stale, application)
        return attempt

    def _unreserve(self, attempt: Attempt) -> None:
        application = self._ledger.query(attempt.id.query).application
        self._storage.unreserve(attempt.reserved_bytes)
        self._used[application] -= attempt.reserved_bytes
        attempt.reserved_bytes = 0

    def _free(self, attempt: Attempt, application: str) -> None:
        self._used[application] -= attempt.held_bytes
        self._storage.unreserve(attempt.reserved_bytes)
        attempt.reserved_bytes = 0
        self._storage.drop(attempt.chunks.values())
        attempt.chunks = {}

    # ----------------------------------------------------------------------------------------- checkpoints

    def keep_stage(self, stage: KeepStage) -> None:
        """Keep outputs of a running query beyond its end."""
        if not _NAME.fullmatch(stage.kept.value):
            raise Refusal(UNKNOWN_QUERY, f"{stage.kept.value!r} is not a valid query id.")
        with self._lock:
            if self._draining:
                raise Refusal(DRAINING, f"{self.name} keeps nothing new.")
            self.kept.keep(stage, self._settings.quota_bytes)

    def find_stage(self, wanted: FindStage) -> FoundStage:
        with self._lock:
            return self.kept.find(wanted)

    def checkpoints(self) -> CheckpointList:
        with self._lock:
            return CheckpointList(self.kept.list())

    def drop_checkpoint(self, checkpoint: str) -> None:
        with self._lock:
            self.kept.drop(checkpoint, self._end)

    # --------------------------------------------------------------------------------------------- reading

    def frames(self, request: BlockRequest) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield the frames of the blocks. They are made on demand, so a slow reader costs no memory."""
        for number, block in enumerate(request.blocks):
            try:
                index, chunks = self._find(block)
            except Refusal as refusal:
                yield _problem(Kind.MISSING, number, f"{refusal.code}: {refusal.message}")
                return
            yield frame(Header(Kind.INDEX, block=number), pa.py_buffer(index))
            for chunk in range(0 if number else request.skip_chunks, len(chunks)):
                try:
                    data = self._storage.read(chunks[chunk])
                except OSError as error:
                    yield _problem(Kind.MISSING, number, f"{block}: chunk {chunk}: {error}.")
                    return
                self.counts.add("bytes_read", data.size)
                limit_bytes = min(request.max_message_bytes, _MESSAGE_BYTES)
                yield from split_chunk(number, chunk, data, request.codec, limit_bytes)
        self.counts.add("blocks_read", len(request.blocks))

    def _find(self, block: Block) -> tuple[bytes, list[Stored]]:
        with self._lock:
            attempt = self._ledger.committed(block.attempt)
            found = attempt.blocks.get(block.partition) if attempt and attempt.blocks else None
            if attempt is None or found is None:
                raise Refusal("SHUFFLE_BLOCK_MISSING", f"{block} is not on {self.name}.")
            if checksum_of(found.index) != block.checksum:
                raise Refusal("SHUFFLE_BLOCK_MISSING", f"{block} on {self.name} has different contents.")
            count = sum(partition == block.partition for partition, _ in attempt.chunks)
            return found.index, [attempt.chunks[block.partition, number] for number in range(count)]

    # ---------------------------------------------------------------------------------------------- health

    def drain(self) -> None:
        """Refuse new attempts. Those that have begun may finish, and reads continue."""
        self._draining = True

    @property
    def empty(self) -> bool:
        with self._lock:
            return all(query.kept is not None for query in self._ledger.queries.values())

    def health(self) -> ServiceHealth:
        with self._lock:
            queries = list(self._ledger.queries.values())
            attempts = [attempt for query in queries for attempt in query.attempts.values()]
            return ServiceHealth(
                name=self.name,
                status="draining" if self._draining else "serving",
                applications=len({query.application for query in queries}),
                queries=len(queries),
                attempts=len(attempts),
                committed=sum(attempt.blocks is not None for attempt in attempts),
                held_bytes=sum(self._used.values()),
                memory_bytes=self._storage.memory_bytes,
                memory_limit_bytes=self._storage.memory_limit_bytes,
                disk_bytes=self._storage.disk_bytes,
                uptime_seconds=time.monotonic() - self._started,
            )

    @property
    def spilled_bytes(self) -> int:
        return self._storage.spilled_bytes

    def close(self) -> None:
        """Close the files. The next server that starts in these directories restores all commits."""
        with self._lock:
            self._journal.close()
            for descriptor in self._locked:
                os.close(descriptor)


def _problem(kind: Kind, block: int, message: str) -> tuple[pa.RecordBatch, bytes]:
    return frame(Header(kind, block=block), pa.py_buffer(message.encode()))
