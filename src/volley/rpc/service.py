# SPDX-License-Identifier: Apache-2.0
"""What is said to a shuffle server, and what it writes down. Data follows or precedes in plain bytes.

    keep      KeepAlive        ->  Kept                 a driver begins queries, and shows again and again that it lives
    reserve   ReserveBytes     ->  Granted              room for what is about to be sent; none: ask again soon
    push      PushChunks+data  ->  Ack               numbered, so that a second time does nothing
    commit    CommitAttempt    ->  Ack               all of an attempt that is on this server, or nothing
    abort     AttemptId        ->  Ack
    release   QueryId          ->  Ack               the query is over
    health    AskHealth        ->  ServiceHealth
    drain     Drain            ->  Ack

Whatever is refused is answered by `Refused`, with one of the codes below. Every word carries the protocol version.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.fields import Checksum, Count, Name, Seconds
from volley.ids import AttemptId, QueryId

UNKNOWN_QUERY = "SHUFFLE_UNKNOWN_QUERY"
QUERY_OVER = "SHUFFLE_QUERY_OVER"
LEASE_EXPIRED = "SHUFFLE_LEASE_EXPIRED"
STALE_EPOCH = "SHUFFLE_STALE_EPOCH"
COMMIT_LOST = "SHUFFLE_COMMIT_LOST"
ATTEMPT_CLOSED = "SHUFFLE_ATTEMPT_CLOSED"
DAMAGED_ON_WAY = "SHUFFLE_DAMAGED_ON_WAY"
NOT_RESERVED = "SHUFFLE_NOT_RESERVED"
QUOTA = "SHUFFLE_QUOTA"
FULL = "SHUFFLE_FULL"
DRAINING = "SHUFFLE_DRAINING"
UNAVAILABLE = "SHUFFLE_UNAVAILABLE"

ELSEWHERE = frozenset({UNKNOWN_QUERY, QUOTA, FULL, DRAINING})
"""Refusals that another server may not share."""


@dataclass(frozen=True)
class KeepAlive:
    """`queries` are all that the application runs. Those that are new here begin."""

    application: Name
    queries: tuple[QueryId, ...]


@dataclass(frozen=True)
class Kept:
    """`expired` were removed here since: their driver was silent for too long."""

    lease_seconds: Seconds
    expired: tuple[QueryId, ...]


@dataclass(frozen=True)
class ReserveBytes:
    attempt: AttemptId
    size_bytes: Count


@dataclass(frozen=True)
class Granted:
    """None when there is no room now."""

    size_bytes: Count


@dataclass(frozen=True)
class PushedChunk:
    """`sequence` counts the chunks of one partition of one attempt from 0."""

    partition: Count
    sequence: Count
    size_bytes: Count
    checksum: Checksum


@dataclass(frozen=True)
class PushChunks:
    """Their bytes follow, one after the other."""

    attempt: AttemptId
    chunks: tuple[PushedChunk, ...]


@dataclass(frozen=True)
class CommittedBlock:
    """`index` lists the chunks of the partition as `chunks.Index` packs them; `start` is a chunk's sequence number."""

    partition: Count
    index: bytes


@dataclass(frozen=True)
class CommitAttempt:
    attempt: AttemptId
    blocks: tuple[CommittedBlock, ...]


@dataclass(frozen=True)
class ServiceHealth:
    """A server as it is now. `status` is "serving" or "draining"."""

    name: Name
    status: Name
    applications: Count
    queries: Count
    attempts: Count
    committed: Count
    held_bytes: Count
    memory_bytes: Count
    memory_limit_bytes: Count
    disk_bytes: Count
    uptime_seconds: Seconds


# ---------------------------------------------------------------------------------------------- in the journal


@dataclass(frozen=True)
class QueryBegan:
    query: QueryId
    application: Name


@dataclass(frozen=True)
class ChunkPlace:
    file: Name
    start: Count


@dataclass(frozen=True)
class PlacedBlock:
    """A committed block and where its chunks lie, in their order; no places where they were left in memory."""

    block: CommittedBlock
    places: tuple[ChunkPlace, ...]


@dataclass(frozen=True)
class AttemptCommitted:
    attempt: AttemptId
    blocks: tuple[PlacedBlock, ...]


@dataclass(frozen=True)
class QueryEnded:
    """`code` is what late callers are told."""

    query: QueryId
    code: Name
