# SPDX-License-Identifier: Apache-2.0
"""The base of all Volley servers: how they listen, and what a peer sees of an error.

    do_action    answer(action, body)     ->  a message; an error becomes `Refused` with its code
    do_get       stream(ticket)           ->  batches; an error becomes a Flight error with the code in its text
    do_put       receive(command, ...)    ->  like do_get

An exception that escapes a Flight handler sends a traceback of this process to the peer. So every exception is mapped
here: Volley's errors to their code, a cancelled call to STOPPING, and anything else to INTERNAL, with the traceback in
this process's log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import ConfigError, QueryError, VolleyError
from volley.rpc.addresses import address_of
from volley.rpc.codec import encode
from volley.rpc.control import INTERNAL, NOT_OFFERED, STOPPING, Refused
from volley.rpc.guard import ConnectionGuard, GuardLimits
from volley.security import Security

_log = logging.getLogger(__name__)

Listening = TypeVar("Listening", bound="Server")
Rows = tuple[pa.Schema, Iterator[Any]]
"""A schema and its batches, with or without metadata."""


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Subclasses override the methods that they support. Until `open`, every call fails as "unavailable".

    It listens as soon as it is constructed, so that its port is known.
    """

    role = "server"
    """What error messages call it."""

    def __init__(self, uri: str, **security: Any) -> None:
        self._is_open = False
        self._guard: ConnectionGuard | None = None
        super().__init__(uri, **security)

    def open(self) -> None:
        """Start answering calls."""
        self._is_open = True

    def guard(self, limits: GuardLimits) -> None:
        """Bound what callers without the token may send, from now on until `shutdown`."""
        self._guard = ConnectionGuard(self.port, limits)

    def shutdown(self) -> None:
        if self._guard is not None:
            self._guard.close()
        super().shutdown()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        """The reply to an action: a message, or its encoded bytes."""
        raise QueryError(f"a {self.role} does not support {action!r}.")

    def answer_call(self, action: str, body: pa.Buffer, is_cancelled: Callable[[], bool]) -> Any:
        """Like `answer`, for actions that wait: `is_cancelled` tells whether the caller has gone."""
        return self.answer(action, body)

    def stream(self, ticket: bytes) -> Rows:
        """The schema and the batches of a ticket. Batches are produced as they are consumed."""
        raise QueryError(f"a {self.role} serves no rows.")

    def receive(
        self, command: bytes, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
    ) -> None:
        """Consume the rows of a put, and reply through `writer`."""
        raise QueryError(f"a {self.role} accepts no rows.")

    def on_refused(self, refusal: Refused) -> None:
        """Called for every refused action, for counters."""

    # --------------------------------------------------------------------------------------------- Flight handlers

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        self._admit(context)
        try:
            answer = self.answer_call(action.type, action.body, context.is_cancelled)
            answer = answer if isinstance(answer, bytes) else encode(answer)
        except Exception as error:
            refusal = refusal_of(error, action.type)
            self.on_refused(refusal)
            answer = encode(refusal)
        yield answer

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        self._admit(context)
        try:
            schema, batches = self.stream(ticket.ticket)
            return flight.GeneratorStream(schema, _map_errors(batches))
        except Exception as error:
            _raise_flight_error(error, "do_get")

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        self._admit(context)
        try:
            self.receive(descriptor.command or b"", reader, writer)
        except Exception as error:
            _raise_flight_error(error, "do_put")

    def _refuse(self, *arguments: Any) -> NoReturn:
        """Refuse a call. Flight's default reply would contain a traceback."""
        raise flight.FlightServerError(f"[{NOT_OFFERED}] a {self.role} does not support this call.")

    # `get_schema` is left to pyarrow: it would send the traceback of our error, but its own names none of our files.
    list_flights = get_flight_info = do_exchange = list_actions = _refuse

    def _admit(self, context: flight.ServerCallContext) -> None:
        # Flight has checked the token before it calls a handler.
        if self._guard is not None:
            self._guard.admit(context.peer())
        if not self._is_open:
            raise flight.FlightUnavailableError("starting")


def refusal_of(error: Exception, doing: str) -> Refused:
    """What a peer learns of an error. Only Volley's own errors have messages that are meant for peers."""
    if isinstance(error, VolleyError):
        return Refused(error.code, error.message)
    if isinstance(error, CancelledError):
        return Refused(STOPPING, "the request was cancelled, or this process is stopping.")
    _log.error("%s failed", doing, exc_info=error)
    return Refused(INTERNAL, f"{doing} failed: {type(error).__name__}")


def _raise_flight_error(error: Exception, doing: str) -> NoReturn:
    """Raise the refusal as a Flight error: a stream has no other way to report it."""
    if isinstance(error, flight.FlightError):
        raise error
    refusal = refusal_of(error, doing)
    raise flight.FlightServerError(f"[{refusal.code}] {refusal.message}") from None


def _map_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """Map the errors of a stream too: Flight consumes its batches after `do_get` has returned."""
    try:
        yield from batches
    except Exception as error:
        _raise_flight_error(error, "do_get")


# ------------------------------------------------------------------------------------------------------ listening


def listen(
    make: Callable[..., Listening],
    host: str,
    port: int,
    security: Security,
    *,
    require_client_certificate: bool = False,
    insecure: bool = False,
    limits: GuardLimits | None = None,
) -> Listening:
    """Start a server: call `make` with its URI and security arguments. ConfigError if it must not or cannot listen."""
    security.check_listening(host, insecure)
    address = address_of(host, port)
    arguments: dict[str, Any] = security.server_arguments(require_client_certificate)
    try:
        server = make(security.uri(address), **arguments)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise ConfigError(
            f"cannot listen on {address}: {error}.", hint="Is the port in use? Is the certificate valid?"
        ) from error
    if security.token is not None:
        server.guard(limits or GuardLimits())
    return server
