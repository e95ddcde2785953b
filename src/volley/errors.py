# SPDX-License-Identifier: Apache-2.0
"""Everything Volley raises.

VolleyError                      code, what happened, what to do next
+-- ConfigError                  an option has a value it cannot have
+-- SessionError                 this Spark session cannot be enabled
+-- FallbackError                spark.volley.fallback=error and something is not native
+-- CaptureError                 Spark's plan could not be read without guessing
+-- QueryError                   a native query failed
    +-- TaskError                in a task of a stage, with its attempt
    +-- EngineError              the native engine failed, and not because of the data: a defect
    +-- ResultInterrupted        a worker was lost after the client had taken some of its rows
    +-- NoWorkers                none of the worker daemons can be used
    +-- HandshakeRefused         two processes of different versions, or a token that is not accepted
    +-- PeerLost                 another process does not answer, or not with what was asked for
    |   +-- PeerTimedOut         not within the deadline of the call
    |   +-- PeerUnavailable      nobody listens there, or the connection broke
    +-- PeerRefused              another process refuses a call; its code says why
    +-- BlockMissing             exchanged data is not where the manifest says
    |   +-- BlockDamaged         it is there, and is not what was written
    |   +-- LeaseExpired         its driver did not show that it lives, and all of the query was removed
    +-- ShuffleRefused           a shared shuffle store does not take exchanged data; its code says why
    +-- SpillDiskFull            exchanged data fits neither the memory budget nor a spill directory
    +-- SourceError              a source failed to find out what there is to read
    +-- CommitError              files of a write may be in the table in part; it is not tried again
    +-- CrossingError            rows could not be handed from one engine to the other
    +-- DataError                the data or an input file is at fault; Spark is asked for its own error
    +-- QueryCancelled           somebody cancelled it
    +-- DeadlineExceeded         a wait took longer than it may
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from volley.ids import AttemptId


class VolleyError(Exception):
    """Base of all: `code` is stable, `message` says what and where, `hint` says what to do next."""

    code = "VOLLEY_ERROR"

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"[{self.code}] {message}" + (f" {hint}" if hint else ""))


class ConfigError(VolleyError):
    code = "INVALID_OPTION"


class SessionError(VolleyError):
    code = "SESSION_NOT_SUPPORTED"


class FallbackError(VolleyError):
    code = "NOT_NATIVE"


class CaptureError(VolleyError):
    code = "PLAN_NOT_READABLE"


class QueryError(VolleyError):
    code = "QUERY_FAILED"


class TaskError(QueryError):
    code = "TASK_FAILED"

    def __init__(self, attempt: AttemptId, message: str, *, hint: str = "") -> None:
        self.attempt = attempt
        super().__init__(f"{attempt}: {message}", hint=hint)


class EngineError(QueryError):
    """The native engine failed where data cannot be the cause. Spark may run the query, and a warning says so."""

    code = "ENGINE_ERROR"


class NoWorkers(QueryError):
    code = "NO_WORKERS"


class HandshakeRefused(QueryError):
    code = "HANDSHAKE_REFUSED"


class PeerLost(QueryError):
    code = "PEER_LOST"


class PeerTimedOut(PeerLost):
    code = "PEER_TIMED_OUT"


class PeerUnavailable(PeerLost):
    code = "PEER_UNAVAILABLE"


class PeerRefused(QueryError):
    """`code` is that of the error on the other side."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        self.code = code
        super().__init__(message, hint=hint)


class ResultInterrupted(QueryError):
    """The rows that are out cannot be taken back; a client that has not used them yet may begin again."""

    code = "RESULT_INTERRUPTED"


class SourceError(QueryError):
    """Discovery failed; `__cause__` is what the source raised."""

    code = "DISCOVERY_FAILED"

    def __init__(self, source: str, cause: BaseException) -> None:
        self.source = source
        super().__init__(f"source {source} could not find its splits: {type(cause).__name__}: {cause}")


class DataError(QueryError):
    """The native engine met data that Spark may answer with an error (overflow, bad cast, broken file)."""

    code = "DATA_ERROR"


class CommitError(QueryError):
    """Files were being moved into the table when it failed. Writing again could double rows."""

    code = "COMMIT_FAILED"


class CrossingError(QueryError):
    """Rows could not be handed from one engine to the other; nothing is known about the rows themselves."""

    code = "ROWS_NOT_HANDED_OVER"


class QueryCancelled(QueryError):
    code = "QUERY_CANCELLED"


class DeadlineExceeded(QueryError):
    code = "DEADLINE_EXCEEDED"


class BlockMissing(QueryError):
    """A manifest names a block that its store does not have; an empty answer would be a wrong one.

    `attempt` is the one whose output is lost, where that is known: it has to be computed again.
    """

    code = "SHUFFLE_BLOCK_MISSING"

    def __init__(self, message: str, *, attempt: AttemptId | None = None, hint: str = "") -> None:
        self.attempt = attempt
        super().__init__(message, hint=hint)


class BlockDamaged(BlockMissing):
    code = "SHUFFLE_BLOCK_DAMAGED"


class LeaseExpired(BlockMissing):
    code = "SHUFFLE_LEASE_EXPIRED"


class ShuffleRefused(QueryError):
    """The attempt that was refused has lost; another one may pass.

    SHUFFLE_STALE_EPOCH       the stage has been rolled back since
    SHUFFLE_COMMIT_LOST       another attempt at the same task was committed first
    SHUFFLE_ATTEMPT_CLOSED    the attempt was committed, aborted or never begun there
    SHUFFLE_DAMAGED_ON_WAY    what arrived is not what was sent, or not all of it
    SHUFFLE_QUOTA             the application has no room left
    SHUFFLE_FULL              no server that may have the data has room for it
    SHUFFLE_UNAVAILABLE       no server that may have the data answers
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        self.code = code
        super().__init__(message, hint=hint)


class SpillDiskFull(QueryError):
    code = "SPILL_DISK_FULL"

    def __init__(self, attempt: AttemptId, directories: Sequence[Path], needed_bytes: int) -> None:
        self.attempt = attempt
        self.directories = tuple(directories)
        self.needed_bytes = needed_bytes
        places = ", ".join(str(directory) for directory in directories) or "any directory: none is configured"
        super().__init__(
            f"{attempt}: {needed_bytes} bytes of exchanged data do not fit on {places}.",
            hint="Free space there, give the worker more spill directories, or raise its memory or"
            " spark.volley.shuffle.memoryFraction.",
        )
