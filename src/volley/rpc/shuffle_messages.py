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
    replicate Replicate        ->  Ack              a driver tells which servers are lost; copies follow
    pull      PullBlock        ->  Ack              a server asks another to take a replica

    keep-stage       KeepStage         ->  Ack            keep outputs of a query beyond its end
    find-stage       FindStage         ->  FoundStage
    checkpoints      AskCheckpoints    ->  CheckpointList
    drop-checkpoint  DropCheckpoint    ->  Ack

A refused request is answered with `Refused` and one of the codes below. Every message carries the protocol version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from volley.field_types import AtMost, Between, Checksum, Count, MessageBytes, Name, Positive, Seconds, Secret
from volley.ids import AttemptId, QueryId
from volley.rpc.blocks import Block

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


Seconds1970 = Annotated[float, Between(0, 1e11)]


@dataclass(frozen=True)
class KeepAlive:
    """`queries` are all that the application runs. Those that the server does not know yet begin here."""

    application: Name
    queries: Annotated[tuple[QueryId, ...], AtMost(10_000)]


@dataclass(frozen=True)
class Kept:
    """`expired` are queries that the server has removed because their lease ran out. `draining`: it will leave."""

    lease_seconds: Seconds
    expired: tuple[QueryId, ...]
    draining: bool = False


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
    """`index` lists the chunks of the partition as `chunks.Index` packs them; `start` is a chunk's sequence number.

    `holders` are the servers that had the block when it was committed: a hint for restoring replicas after a loss.
    """

    partition: Count
    index: bytes
    holders: Annotated[tuple[Name, ...], AtMost(1000)] = field(default=(), compare=False)


@dataclass(frozen=True)
class CommitAttempt:
    attempt: AttemptId
    blocks: tuple[CommittedBlock, ...]


@dataclass(frozen=True)
class Replicate:
    """Restore `replicas` copies of the blocks of these queries: the servers `gone` are lost, and `leaving` drain.

    `here` is the address of the server that gets this, and `servers` are those that take copies.
    """

    here: Name
    queries: Annotated[tuple[QueryId, ...], AtMost(10_000)]
    gone: Annotated[tuple[Name, ...], AtMost(1000)]
    leaving: Annotated[tuple[Name, ...], AtMost(1000)]
    servers: Annotated[tuple[Name, ...], AtMost(1000)]
    replicas: Positive


@dataclass(frozen=True)
class PullBlock:
    """Take a replica of a block from the server `source`. `holders` will have it then."""

    block: Block
    source: Name
    holders: Annotated[tuple[Name, ...], AtMost(1000)]


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


# ------------------------------------------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class KeepStage:
    """Keep the outputs of these `attempts`, all of one stage of a running query, for so long after they were last used.

    They can be read as outputs of the query `kept`, whose key is new. `record` describes them; the store returns it to
    callers that know `key` and the secret `checkpoint`.
    """

    checkpoint: Secret
    key: Secret
    kept: QueryId
    attempts: Annotated[tuple[AttemptId, ...], AtMost(100_000)]
    record: bytes
    seconds: Seconds


@dataclass(frozen=True)
class FindStage:
    """Ask for a kept stage. What is found is kept for `seconds` from now."""

    checkpoint: Secret
    key: Secret
    seconds: Seconds


@dataclass(frozen=True)
class FoundStage:
    """`record` is empty if there is no such stage. `kept_at`: seconds since 1970, by the server's clock."""

    record: bytes = b""
    kept_at: Seconds1970 = 0.0


@dataclass(frozen=True)
class AskCheckpoints:
    pass


@dataclass(frozen=True)
class CheckpointInfo:
    """The public description of a checkpoint.

    `id` does not give access to it. Its last stage expires in `seconds_left`.
    """

    id: Name
    stages: Count
    size_bytes: Count
    seconds_left: Seconds


@dataclass(frozen=True)
class CheckpointList:
    checkpoints: tuple[CheckpointInfo, ...]


@dataclass(frozen=True)
class DropCheckpoint:
    checkpoint: Secret


# --------------------------------------------------------------------------------------------- journal records


@dataclass(frozen=True)
class StageKept:
    """The query `kept` is a stage of a checkpoint, until a time in seconds since 1970."""

    kept: QueryId
    checkpoint: Secret
    key: Secret
    record: bytes
    until: Seconds1970
    kept_at: Seconds1970 = 0.0


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
