# SPDX-License-Identifier: Apache-2.0
"""The messages of a shuffle server, and the records of its journal. Chunk data follows a message as plain bytes.

    keep      KeepAlive        ->  Kept             registers new queries and renews the application's lease
    reserve   ReserveBytes     ->  Granted          memory for the next push; 0: ask again soon
    push      PushChunks+data  ->  Ack              chunks are numbered, so a repeated push has no effect
    commit    CommitAttempt    ->  Ack              atomic for all of the attempt's chunks on this server
    abort     AttemptId        ->  Ack
    release   QueryId          ->  Ack              the query is over
    health    AskHealth        ->  ServiceHealth
    drain     Drain            ->  Ack

A refused request is answered with `Refused` and one of the codes below. Every message carries the protocol version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from volley.fields import AtMost, Checksum, Count, MessageBytes, Name, Seconds
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
"""Refusals for which another server may still accept the request."""


@dataclass(frozen=True)
class KeepAlive:
    """`queries` are all that the application runs. Those that the server does not know yet begin here."""

    application: Name
    queries: Annotated[tuple[QueryId, ...], AtMost(10_000)]


@dataclass(frozen=True)
class Kept:
    """`expired` are queries that the server has removed because their lease ran out."""

    lease_seconds: Seconds
    expired: tuple[QueryId, ...]


@dataclass(frozen=True)
class ReserveBytes:
    attempt: AttemptId
    size_bytes: MessageBytes


@dataclass(frozen=True)
class Granted:
    """`size_bytes` is 0 if there is no room now."""

    size_bytes: Count


@dataclass(frozen=True)
class PushedChunk:
    """`sequence` counts the chunks of one partition of one attempt from 0."""

    partition: Count
    sequence: Count
    size_bytes: MessageBytes
    checksum: Checksum


@dataclass(frozen=True)
class PushChunks:
    """The bytes of the chunks follow, one after the other."""

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
    """The current state of a shuffle server. `status` is "serving" or "draining"."""

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


# --------------------------------------------------------------------------------------------- journal records


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
    """A committed block and where its chunks are, in order; no `places` if they are in memory."""

    block: CommittedBlock
    places: tuple[ChunkPlace, ...]


@dataclass(frozen=True)
class AttemptCommitted:
    attempt: AttemptId
    blocks: tuple[PlacedBlock, ...]


@dataclass(frozen=True)
class QueryEnded:
    """`code` is the refusal that late callers get."""

    query: QueryId
    code: Name
