# SPDX-License-Identifier: Apache-2.0
"""Failures in the form of Spark's Connect server: a gRPC status with the error class and condition.

Errors of Spark itself are not made here: its server raises them, and they are passed on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2

from volley.errors import QueryCancelled, VolleyError

_DETAILS = "grpc-status-details-bin"
_JAVA_ERROR = ("java.lang.Exception", "java.lang.Throwable", "java.lang.Object", "java.io.Serializable")
_SQL_EXCEPTION = ("org.apache.spark.SparkSQLException", "java.sql.SQLException", *_JAVA_ERROR)
_SPARK_EXCEPTION = ("org.apache.spark.SparkException", *_JAVA_ERROR)


@dataclass(frozen=True)
class Status:
    """`condition` is one of Spark's error conditions, if there is one."""

    message: str
    classes: tuple[str, ...] = _SPARK_EXCEPTION
    condition: str = ""
    sql_state: str = ""

    def trailing_metadata(self) -> Sequence[tuple[str, bytes]]:
        metadata = {"classes": json.dumps(self.classes)}
        if self.condition:
            metadata |= {"errorClass": self.condition, "sqlState": self.sql_state, "messageParameters": "{}"}
        info = error_details_pb2.ErrorInfo(
            reason=self.classes[0], domain="org.apache.spark", metadata=metadata
        )
        status = status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message=self.message)
        status.details.add().Pack(info)
        return [(_DETAILS, status.SerializeToString())]


class Failure(Exception):
    """Ends the call of a client with this status."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.message)


def _condition(name: str, text: str, sql_state: str) -> Status:
    return Status(f"[{name}] {text} SQLSTATE: {sql_state}", _SQL_EXCEPTION, name, sql_state)


CANCELED = _condition("OPERATION_CANCELED", "Operation has been canceled.", "HY008")
ALREADY_EXISTS = _condition(
    "INVALID_HANDLE.OPERATION_ALREADY_EXISTS",
    "The handle is invalid. Operation already exists.",
    "HY000",
)
NOT_REATTACHABLE = _condition(
    "INVALID_CURSOR.NOT_REATTACHABLE",
    "The cursor is invalid. The cursor is not reattachable.",
    "HY109",
)
POSITION_NOT_AVAILABLE = _condition(
    "INVALID_CURSOR.POSITION_NOT_AVAILABLE",
    "The cursor is invalid. The cursor position is no longer available.",
    "HY109",
)
POSITION_NOT_FOUND = _condition(
    "INVALID_CURSOR.POSITION_NOT_FOUND",
    "The cursor is invalid. The cursor position is not found.",
    "HY109",
)


def status_of(error: VolleyError) -> Status:
    """What a client is told of an error of Volley: its code is in the text."""
    return CANCELED if isinstance(error, QueryCancelled) else Status(str(error))


def abort(context: Any, status: Status) -> NoReturn:
    """End the call of a client with a status."""
    context.set_trailing_metadata(status.trailing_metadata())
    context.abort(grpc.StatusCode.INTERNAL, status.message)
    raise AssertionError("abort raises")


def abort_like(context: Any, error: Any) -> NoReturn:
    """End the call of a client as Spark's server ended ours."""
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(error.code(), error.details() or "")
    raise AssertionError("abort raises")
