# SPDX-License-Identifier: Apache-2.0
"""What every server of Volley has in common: how it listens, and what a peer sees when something goes wrong.

    do_action    answer(action, body)     ->  a message; an error becomes `Refused` with its code
    do_get       stream(ticket)           ->  batches; an error becomes a Flight error with the code in its text
    do_put       receive(command, ...)    ->  likewise

An exception that left a Flight handler would carry a traceback of this process to the peer. So each is mapped here:
errors of Volley by their code, a cancelled call to STOPPING, and everything else to INTERNAL, with the traceback in the
log of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import ConfigError, QueryError, VolleyError
from volley.rpc.codec import encode
from volley.rpc.control import INTERNAL, NOT_OFFERED, STOPPING, Refused
from volley.security import Security

_log = logging.getLogger(__name__)

Listening = TypeVar("Listening")
Rows = tuple[pa.Schema, Iterator[Any]]
"""Batches, or batches with metadata."""


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Subclasses override what they offer. Until `open` they refuse to answer with "unavailable", as one that is gone.

    It listens from its construction on, so that its port is known.
    """

    offers = "server"
    """What messages of errors call it."""

    def __init__(self, uri: str, **security: Any) -> None:
        self._is_open = False
        super().__init__(uri, **security)

    def open(self) -> None:
        """Answer from now on."""
        self._is_open = True

    def answer(self, action: str, body: pa.Buffer) -> Any:
        """The message, or the encoded one, that answers an action."""
        raise QueryError(f"{action!r} is nothing that a {self.offers} does.")

    def stream(self, ticket: bytes) -> Rows:
        """The schema of the rows that a ticket stands for, and the batches, made as they are taken."""
        raise QueryError(f"a {self.offers} has no rows to give.")

    def receive(
        self, command: bytes, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
    ) -> None:
        raise QueryError(f"a {self.offers} takes no rows.")

    def refused(self, refusal: Refused) -> None:
        """Told of every action that is refused; for counters."""

    # ------------------------------------------------------------------------------------------ what Flight calls

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        self._require_open()
        try:
            answer = self.answer(action.type, action.body)
            answer = answer if isinstance(answer, bytes) else encode(answer)
        except Exception as error:
            refusal = refusal_of(error, action.type)
            self.refused(refusal)
            answer = encode(refusal)
        yield answer

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        self._require_open()
        try:
            schema, batches = self.stream(ticket.ticket)
            return flight.GeneratorStream(schema, _guarded(batches))
        except Exception as error:
            _raise_flight_error(error, "do_get")

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        self._require_open()
        try:
            self.receive(descriptor.command or b"", reader, writer)
        except Exception as error:
            _raise_flight_error(error, "do_put")

    def _refuse(self, *arguments: Any) -> NoReturn:
        """Flight's own answer to these would be a traceback."""
        raise flight.FlightServerError(f"[{NOT_OFFERED}] a {self.offers} does not do this.")

    # `get_schema` is left to pyarrow, whose own refusal names no file of ours; it shows the traceback of any error.
    list_flights = get_flight_info = do_exchange = list_actions = _refuse

    def _require_open(self) -> None:
        if not self._is_open:
            raise flight.FlightUnavailableError("starting")


def refusal_of(error: Exception, doing: str) -> Refused:
    """What a peer is told of an error. Only errors of Volley are meant for others to read."""
    if isinstance(error, VolleyError):
        return Refused(error.code, error.message)
    if isinstance(error, CancelledError):
        return Refused(STOPPING, "what was asked for has ended, or this process is stopping.")
    _log.error("%s failed", doing, exc_info=error)
    return Refused(INTERNAL, f"{doing} failed: {type(error).__name__}")


def _raise_flight_error(error: Exception, doing: str) -> NoReturn:
    """The same for a stream, which has no other way to say it."""
    if isinstance(error, flight.FlightError):
        raise error
    refusal = refusal_of(error, doing)
    raise flight.FlightServerError(f"[{refusal.code}] {refusal.message}") from None


def _guarded(batches: Iterator[Any]) -> Iterator[Any]:
    """Flight takes the batches of a stream after `do_get` has returned."""
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
) -> Listening:
    """The server that `make` makes of a URI and what security asks for. ConfigError when it may or can not listen."""
    security.check_listening(host, insecure)
    address = address_of(host, port)
    arguments: dict[str, Any] = security.server_arguments(require_client_certificate)
    try:
        return make(security.uri(address), **arguments)
    except (pa.ArrowException, flight.FlightError, OSError) as error:
        raise ConfigError(
            f"{address} cannot be listened on: {error}.", hint="Is the port taken, is the certificate good?"
        ) from error


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_name(host: str, advertise: str) -> str:
    """What others call a daemon that listens on `host`."""
    if advertise:
        return advertise
    if host in ("0.0.0.0", "::", ""):
        raise ConfigError(
            f"{host or 'an empty host'} is no name that others can call.", hint="Give --advertise."
        )
    return host
