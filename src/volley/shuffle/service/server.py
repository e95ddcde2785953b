# SPDX-License-Identifier: Apache-2.0
"""The Flight face of a shuffle server: actions for everything that is said, `do_get` for blocks.

What goes wrong is answered as `Refused`: an exception that left this file would carry a traceback of this process to
the peer.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import QueryError, VolleyError
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import BlockRequest
from volley.shuffle.frames import SCHEMA
from volley.shuffle.service.messages import CommitAttempt, Granted, KeepAlive, PushChunks, ReserveBytes
from volley.shuffle.service.server_state import ShuffleServerState
from volley.transport.codec import decode, encode
from volley.transport.control import Ack, AskHealth, Drain, Refused

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct("<I")


def push_body(message: PushChunks, data: list[pa.Buffer]) -> bytes:
    """A push as it is sent: the length of the message, the message, and the bytes of its chunks."""
    header = encode(message)
    return b"".join((_LENGTH.pack(len(header)), header, *data))


class ShuffleServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from its construction on, so that its port is known, and answers from `open` on."""

    def __init__(self, uri: str, **security: Any) -> None:
        self._server_state: ShuffleServerState | None = None
        super().__init__(uri, **security)

    def open(self, server_state: ShuffleServerState) -> None:
        self._server_state = server_state

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        server_state = self._opened()
        try:
            answer = _answered(server_state, action.type, action.body)
        except VolleyError as error:
            answer = Refused(error.code, error.message)
            server_state.counts["refusals"] += 1
        except Exception as error:
            _log.exception("%s failed", action.type)
            answer = Refused("INTERNAL", f"{action.type} failed: {type(error).__name__}")
        yield encode(answer)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        server_state = self._opened()
        try:
            request = decode(ticket.ticket)
        except VolleyError as error:
            raise flight.FlightServerError(str(error)) from None
        if not isinstance(request, BlockRequest):
            raise flight.FlightServerError(f"{type(request).__name__} is not a request for blocks.")
        return flight.GeneratorStream(SCHEMA, server_state.frames(request))

    def _opened(self) -> ShuffleServerState:
        if self._server_state is None:
            raise flight.FlightUnavailableError("starting")
        return self._server_state


def _answered(server_state: ShuffleServerState, action: str, body: pa.Buffer) -> Any:
    if action == "push":
        return _pushed(server_state, body)
    message = decode(body.to_pybytes())
    match action, message:
        case "keep", KeepAlive():
            return server_state.keep_alive(message)
        case "reserve", ReserveBytes(attempt, size_bytes):
            return Granted(server_state.reserve(attempt, size_bytes))
        case "commit", CommitAttempt():
            server_state.commit(message)
        case "abort", AttemptId():
            server_state.abort(message)
        case "release", QueryId():
            server_state.release(message)
        case "drain", Drain():
            server_state.drain()
        case "health", AskHealth():
            return server_state.health()
        case _:
            raise QueryError(
                f"{action!r} with {type(message).__name__} is nothing that a shuffle server does."
            )
    return Ack()


def _pushed(server_state: ShuffleServerState, body: pa.Buffer) -> Ack:
    if body.size < _LENGTH.size:
        raise QueryError("that was no push.")
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    if start > body.size:
        raise QueryError("that was no push.")
    message = decode(body.slice(_LENGTH.size, length).to_pybytes())
    if not isinstance(message, PushChunks):
        raise QueryError(f"{type(message).__name__} is not a push.")
    server_state.push(message, body.slice(start))
    return Ack()
