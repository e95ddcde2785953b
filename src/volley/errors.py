# SPDX-License-Identifier: Apache-2.0
"""The exceptions that Volley raises.

VolleyError                      code, what happened, what to do next
+-- ConfigError                  an option has an invalid value
+-- SessionError                 this Spark session cannot be enabled
|   +-- ConnectServerElsewhere   the Spark Connect server of a session is not in this process
|   +-- VersionNotSupported      Spark, Java or a package is a version that Volley is not tested with
+-- FallbackError                spark.volley.fallback=error and something is not native
+-- CaptureError                 Spark's plan could not be read exactly
+-- QueryError                   a native query failed
    +-- TaskError                a task failed; names its attempt
    |   +-- OperatorMemoryExhausted  its operators need more memory than they may have
    +-- EngineError              the native engine failed, not because of the data: a bug
    +-- ResultInterrupted        a worker was lost after the client had taken some of its rows
    |   +-- CheckpointLost       a stage that was taken over from a checkpoint cannot be read any more
    +-- NoWorkers                none of the worker daemons can be used
    +-- OptionRefused            the owner of a worker does not allow an option of the session
    +-- HandshakeRefused         two processes have different versions, or the token is not accepted
    +-- PeerLost                 another process does not answer, or sends an invalid answer
    |   +-- PeerTimedOut         no answer before the deadline of the call
    |   +-- PeerUnavailable      nothing listens there, or the connection broke
    |       +-- CertificateRejected  TLS failed: a certificate is missing, wrong or not trusted
    +-- PeerRefused              another process refuses a call; its code says why
    +-- BlockMissing             exchanged data is not where the manifest says
    |   +-- BlockDamaged         it is there, but its checksum does not match
    |   +-- LeaseExpired         the driver did not renew its lease; the query's data was removed
    +-- ShuffleRefused           a shared shuffle store refuses exchanged data; its code says why
    +-- SpillDiskFull            exchanged data fits neither the memory budget nor a spill directory
    +-- PythonWorkerLost         a Python worker process ended while it ran a function
    +-- JvmLost                  the JVM beside a worker ended while it evaluated expressions
    +-- SourceError              a source failed to discover its splits
    +-- TableNotSupported        a lake table uses a feature that its source does not read exactly
    +-- CommitError              a write may have been committed in part; it is not retried
    +-- CrossingError            rows could not be handed from one engine to the other
    +-- DataError                the data or an input file caused the error; Spark replays the query
    +-- QueryCancelled           the query was cancelled
    +-- DeadlineExceeded         a timeout expired
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from volley.ids import AttemptId
from volley.python_versions import add_note


class VolleyError(Exception):
    """The base class. `code` is stable, `message` says what happened and where, `hint` says what to do next."""

    code = "VOLLEY_ERROR"

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = _end_once(message)
        self.hint = hint
        super().__init__(f"[{self.code}] {self.message}" + (f" {hint}" if hint else ""))
        # Below the traceback; a message may be part of a longer sentence.
        add_note(self, f"`volley help {self.code}` says more.")


def _end_once(message: str) -> str:
    """A quoted message may already end with a full stop."""
    return message[:-1] if message.endswith("..") and not message.endswith("...") else message


class ConfigError(VolleyError):
    code = "INVALID_OPTION"


class SessionError(VolleyError):
    code = "SESSION_NOT_SUPPORTED"


class ConnectServerElsewhere(SessionError):
    code = "CONNECT_SERVER_ELSEWHERE"


class VersionNotSupported(SessionError):
    code = "VERSION_NOT_SUPPORTED"


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


class OperatorMemoryExhausted(TaskError):
    """The query may succeed in more and smaller tasks."""

    code = "OPERATOR_MEMORY_EXHAUSTED"


class EngineError(QueryError):
    """The native engine failed, and the data cannot be the cause. Spark may run the query, with a warning."""

    code = "ENGINE_ERROR"

    @classmethod
    def of_defect(cls, error: Exception) -> EngineError:
        """For an exception that nothing expected."""
        made = cls(f"{type(error).__name__}: {error}")
        made.__cause__ = error
        return made


class NoWorkers(QueryError):
    code = "NO_WORKERS"


class OptionRefused(QueryError):
    code = "OPTION_REFUSED"


class HandshakeRefused(QueryError):
    code = "HANDSHAKE_REFUSED"


class PeerLost(QueryError):
    code = "PEER_LOST"


class PeerTimedOut(PeerLost):
    code = "PEER_TIMED_OUT"


class PeerUnavailable(PeerLost):
    code = "PEER_UNAVAILABLE"


class CertificateRejected(PeerUnavailable):
    code = "CERTIFICATE_REJECTED"


class PeerRefused(QueryError):
    """`code` is the code of the error on the other side."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        self.code = code
        super().__init__(message, hint=hint)


class ResultInterrupted(QueryError):
    """Rows that the client already has cannot be taken back. It may run the query again if it has not used them."""

    code = "RESULT_INTERRUPTED"


class CheckpointLost(ResultInterrupted):
    """The query has to compute the stage itself, so it begins again without the checkpoint."""

    code = "CHECKPOINT_LOST"


class SourceError(QueryError):
    """Split discovery failed; `__cause__` is what the source raised."""

    code = "DISCOVERY_FAILED"

    def __init__(self, source: str, cause: BaseException) -> None:
        self.source = source
        super().__init__(f"source {source} could not find its splits: {type(cause).__name__}: {cause}")


class TableNotSupported(QueryError):
    """A table of Delta Lake or Iceberg uses a feature that the data source does not read exactly."""

    code = "TABLE_NOT_SUPPORTED"


class DataError(QueryError):
    """The native engine met data for which Spark may raise an error (overflow, bad cast, broken file)."""

    code = "DATA_ERROR"


class PythonWorkerLost(QueryError):
    """The function crashed its process, or something ended it from outside. Another attempt starts another process."""

    code = "PYTHON_WORKER_LOST"


class JvmLost(QueryError):
    """Spark's code crashed the JVM beside a worker, or something ended it. Another attempt starts another."""

    code = "JVM_LOST"


class CommitError(QueryError):
    """A write failed while its files were being moved into the table. Retrying could duplicate rows."""

    code = "COMMIT_FAILED"


class CrossingError(QueryError):
    """Rows could not be handed from one engine to the other. This says nothing about the rows themselves."""

    code = "ROWS_NOT_HANDED_OVER"


class QueryCancelled(QueryError):
    code = "QUERY_CANCELLED"


class DeadlineExceeded(QueryError):
    code = "DEADLINE_EXCEEDED"


class BlockMissing(QueryError):
    """The store does not have a block that a manifest names. Returning no rows instead would be a wrong result.

    `attempt` is the one whose output is lost, if known: it must be computed again.
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
    """The refused attempt has failed; another one may succeed.

    SHUFFLE_STALE_EPOCH       the stage has since been rolled back
    SHUFFLE_COMMIT_LOST       another attempt at the same task was committed first
    SHUFFLE_ATTEMPT_CLOSED    the attempt was committed, aborted or never begun there
    SHUFFLE_DAMAGED_ON_WAY    data was damaged or lost in transit
    SHUFFLE_QUOTA             the application has used up its quota
    SHUFFLE_FULL              no eligible server has room
    SHUFFLE_UNAVAILABLE       no eligible server answers
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
