"""Everything Volley raises.

    VolleyError                      code, what happened, what to do next
    +-- ConfigError                  an option has a value it cannot have
    +-- SessionError                 this Spark session cannot be enabled
    +-- FallbackError                spark.volley.fallback=error and something is not native
    +-- CaptureError                 Spark's plan could not be read without guessing
    +-- QueryError                   a native query failed
        +-- TaskError                in a task of a stage, with its attempt
        +-- BlockMissing             exchanged data is not where the manifest says
        +-- DataError                the data or an input file is at fault; Spark is asked for its own error
        +-- QueryCancelled           somebody cancelled it
        +-- DeadlineExceeded         a wait took longer than it may
"""

from __future__ import annotations

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


class DataError(QueryError):
    """The native engine met data that Spark may answer with an error (overflow, bad cast, broken file)."""

    code = "DATA_ERROR"


class QueryCancelled(QueryError):
    code = "QUERY_CANCELLED"


class DeadlineExceeded(QueryError):
    code = "DEADLINE_EXCEEDED"


class BlockMissing(QueryError):
    """A manifest names a block that its store does not have; an empty answer would be a wrong one."""

    code = "SHUFFLE_BLOCK_MISSING"
