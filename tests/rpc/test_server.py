# SPDX-License-Identifier: Apache-2.0
"""What a peer sees of a server, whatever goes wrong there: a code and a sentence, and nothing of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from volley.errors import (
    BlockMissing,
    HandshakeRefused,
    PeerLost,
    PeerRefused,
    PeerTimedOut,
    PeerUnavailable,
    QueryError,
)
from volley.rpc.client import Client
from volley.rpc.control import Ack, AskHealth, Drain
from volley.rpc.handshake import Hello, Identity
from volley.rpc.server import Rows, Server, listen
from volley.security import Security

PLAIN = Security()
SCHEMA = pa.schema([("n", pa.int64())])
ERRORS: dict[str, Exception] = {
    "SHUFFLE_BLOCK_MISSING": BlockMissing("it is not here."),
    "STOPPING": CancelledError(),
    "INTERNAL": KeyError("a secret of this process"),
}


class Faulty(Server):
    """Fails in the way that an action, a ticket or a command names."""

    def __init__(self, uri: str, **security: Any) -> None:
        self.stopping = threading.Event()
        super().__init__(uri, **security)

    def answer(self, action: str, body: pa.Buffer) -> Any:
        if action == "hang":
            self.stopping.wait()
        if action == "wrong":
            return Drain()
        if action == "garbage":
            return b"\xff"
        if action in ERRORS:
            raise ERRORS[action]
        return Ack()

    def stream(self, ticket: bytes) -> Rows:
        when, code = ticket.decode().split()
        if when == "before":
            raise ERRORS[code]
        return SCHEMA, _broken(ERRORS[code])

    def receive(
        self, command: bytes, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
    ) -> None:
        raise ERRORS[command.decode()]


def _broken(error: Exception) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array([1], pa.int64())})
    raise error


@contextmanager
def serving(security: Security = PLAIN, opened: bool = True) -> Iterator[str]:
    server = listen(Faulty, "127.0.0.1", 0, security)
    if opened:
        server.open()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stopping.set()
        server.shutdown()


def _check(error: Exception, code: str) -> None:
    said = str(error)
    assert code in said
    assert "a secret" not in said
    assert "Traceback" not in said
    assert "test_server.py" not in said


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_of_an_action_is_a_refusal_with_a_code(code: str) -> None:
    with serving() as address, Client(address, PLAIN) as client:
        assert client.call("fine", AskHealth()) == Ack()
        with pytest.raises(PeerRefused) as info:
            client.call(code, AskHealth())
        assert info.value.code == code
        _check(info.value, code)


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("when", ["before", "while"])
def test_an_error_of_a_stream_has_a_code_and_no_traceback(code: str, when: str) -> None:
    with serving() as address, Client(address, PLAIN) as client:
        with pytest.raises(flight.FlightError) as info:
            client.flight.do_get(flight.Ticket(f"{when} {code}".encode())).read_all()
        _check(info.value, code)


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_of_a_put_has_a_code_and_no_traceback(code: str) -> None:
    with serving() as address, Client(address, PLAIN) as client:
        writer, _ = client.flight.do_put(flight.FlightDescriptor.for_command(code.encode()), SCHEMA)
        with pytest.raises(flight.FlightError) as info:
            writer.close()
        _check(info.value, code)


def test_a_server_that_offers_nothing_refuses_everything() -> None:
    server = listen(Server, "127.0.0.1", 0, PLAIN)
    server.open()
    with Client(f"127.0.0.1:{server.port}", PLAIN) as client:
        with pytest.raises(PeerRefused, match="a server does not support"):
            client.call("health", AskHealth())
        with pytest.raises(flight.FlightError, match="no rows"):
            client.flight.do_get(flight.Ticket(b"x")).read_all()
    server.shutdown()


def _exchange(client: flight.FlightClient) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR)
    writer.begin(SCHEMA)
    writer.done_writing()
    reader.read_all()


DESCRIPTOR = flight.FlightDescriptor.for_command(b"x")
OTHER_VERBS: dict[str, Callable[[flight.FlightClient], object]] = {
    "list_flights": lambda client: list(client.list_flights()),
    "list_actions": lambda client: list(client.list_actions()),
    "get_flight_info": lambda client: client.get_flight_info(DESCRIPTOR),
    "do_exchange": _exchange,
}


@pytest.mark.parametrize("verb", OTHER_VERBS)
def test_unsupported_calls_are_refused_without_a_traceback(verb: str) -> None:
    with serving() as address, Client(address, PLAIN) as client:
        with pytest.raises(flight.FlightError) as info:
            OTHER_VERBS[verb](client.flight)
        _check(info.value, "NOT_OFFERED")


class TestClient:
    def test_an_absent_server_is_unavailable(self) -> None:
        with serving() as gone:
            pass
        with Client(gone, PLAIN) as client, pytest.raises(PeerUnavailable, match=gone):
            client.call("fine", AskHealth())

    def test_a_server_that_is_not_open_is_unavailable(self) -> None:
        with (
            serving(opened=False) as address,
            Client(address, PLAIN) as client,
            pytest.raises(PeerUnavailable, match="starting"),
        ):
            client.call("fine", AskHealth())

    def test_a_call_has_a_deadline(self) -> None:
        with serving() as address, Client(address, PLAIN, role="driver", timeout_seconds=0.1) as client:
            with pytest.raises(PeerTimedOut, match=f"driver {address} did not reply within 0.1 s"):
                client.call("hang", AskHealth())
            assert issubclass(PeerTimedOut, PeerLost)

    def test_a_rejected_token_is_a_clear_error(self) -> None:
        with (
            serving(Security("right")) as address,
            Client(address, Security("wrong")) as client,
            pytest.raises(HandshakeRefused, match="token"),
        ):
            client.call("fine", AskHealth())

    @pytest.mark.parametrize("action", ["wrong", "garbage"])
    def test_an_answer_of_another_kind_is_an_error(self, action: str) -> None:
        with serving() as address, Client(address, PLAIN) as client, pytest.raises(QueryError):
            client.call(action, AskHealth())

    def test_an_invalid_handshake_reply_is_refused(self) -> None:
        hello = Hello(Identity("x", 1, "", ""), "x")
        with (
            serving() as address,
            Client(address, PLAIN) as client,
            pytest.raises(HandshakeRefused, match="sent no valid reply to the handshake"),
        ):
            client.greet(hello)
