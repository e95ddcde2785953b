# SPDX-License-Identifier: Apache-2.0
"""Calls to another Volley process: an action and a message out, a message back, always with a deadline.

    call(action, message)
        a reply of the expected type      ->   returned
        Refused                           ->   PeerRefused, with the peer's error code
        a reply of any other type         ->   QueryError
        the token is rejected             ->   HandshakeRefused
        no reply within the deadline      ->   PeerTimedOut, a PeerLost
        nothing listens there             ->   PeerUnavailable, a PeerLost
        TLS does not come about           ->   CertificateRejected, a PeerUnavailable
        the call fails in another way     ->   PeerLost

A client may be used from any thread. It connects at the first call and keeps the connection.
"""

from __future__ import annotations

from types import TracebackType, UnionType
from typing import Any, TypeVar, overload

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import (
    CertificateRejected,
    HandshakeRefused,
    PeerLost,
    PeerRefused,
    PeerTimedOut,
    PeerUnavailable,
    QueryError,
)
from volley.rpc.codec import decode, encode
from volley.rpc.control import Ack, Refused
from volley.rpc.handshake import Hello, Welcome, read_welcome, to_json
from volley.rpc.message_counts import count_message
from volley.security import Security

CALL_SECONDS = 10.0

Reply = TypeVar("Reply")


class Client:
    """A connection to the process at `address`. Error messages call it by its `role`."""

    def __init__(
        self,
        address: str,
        security: Security,
        *,
        role: str = "worker",
        timeout_seconds: float = CALL_SECONDS,
        hang_seconds: float | None = None,
    ) -> None:
        """`timeout_seconds` is the default deadline of a call; for `hang_seconds` see `Security.connect`."""
        self.address = address
        self.name = f"{role} {address}"
        try:
            self.flight = security.connect(address, hang_seconds)
            """The underlying Flight client, for streams of rows."""
        except (flight.FlightError, pa.ArrowException, OSError, ValueError) as error:
            raise PeerLost(f"cannot connect to {self.name}: {first_line(error)}.") from None
        self._timeout_seconds = timeout_seconds

    @overload
    def call(
        self, action: str, message: Any, expect: type[Reply], *, timeout_seconds: float | None = None
    ) -> Reply: ...

    @overload
    def call(
        self, action: str, message: Any, expect: UnionType, *, timeout_seconds: float | None = None
    ) -> Any: ...

    @overload
    def call(self, action: str, message: Any, *, timeout_seconds: float | None = None) -> Ack: ...

    def call(
        self, action: str, message: Any, expect: Any = Ack, *, timeout_seconds: float | None = None
    ) -> Any:
        """Send a message and return the reply, of type `expect`. A `bytes` message is already encoded."""
        body = message if isinstance(message, bytes) else encode(message)
        answer = decode(self._send(action, body, timeout_seconds))
        if isinstance(answer, Refused):
            raise PeerRefused(answer.code, f"{self.name}: {answer.message}")
        if not isinstance(answer, expect):
            raise QueryError(f"{self.name} replied to {action} with {type(answer).__name__}.")
        return answer

    def greet(self, hello: Hello, timeout_seconds: float | None = None) -> Welcome:
        """Perform the handshake. Raises HandshakeRefused if the two processes are incompatible."""
        reply = self._send("hello", to_json(hello), timeout_seconds)
        welcome = read_welcome(reply)
        if welcome is None:
            raise HandshakeRefused(f"{self.name} sent no valid reply to the handshake.")
        hello.identity.require_same(welcome.identity)
        if welcome.refusal:
            raise HandshakeRefused(welcome.refusal)
        return welcome

    def close(self) -> None:
        self.flight.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, action: str, body: bytes, timeout_seconds: float | None) -> bytes:
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        options = flight.FlightCallOptions(timeout=seconds)
        count_message(action, len(body))
        try:
            (reply,) = self.flight.do_action(flight.Action(action, body), options)
            return bytes(reply.body.to_pybytes())
        except (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError):
            raise HandshakeRefused(
                f"{self.name} rejected this driver's token.",
                hint="Set spark.volley.tokenFile, or VOLLEY_TOKEN, to the same token on both sides.",
            ) from None
        except flight.FlightTimedOutError:
            raise PeerTimedOut(f"{self.name} did not reply within {seconds:g} s.") from None
        except flight.FlightUnavailableError as error:
            raise _unavailable(self.name, error) from None
        except (flight.FlightError, pa.ArrowException, OSError, ValueError) as error:
            raise PeerLost(f"{action} at {self.name}: {first_line(error)}.") from None


_HANDSHAKE_FAILURES = ("certificate verify failed", "ssl handshake", "peer name")


def _unavailable(name: str, error: flight.FlightUnavailableError) -> PeerUnavailable:
    """Say what is wrong in a few words. gRPC gives every address that it tried, and its own state."""
    text = str(error).lower()
    if "connection refused" in text:
        return PeerUnavailable(f"{name}: nothing listens there.")
    if "wrong version number" in text:
        return CertificateRejected(
            f"{name} does not use TLS.", hint="Leave out the CA, or give it a certificate."
        )
    if any(words in text for words in _HANDSHAKE_FAILURES):
        return CertificateRejected(
            f"{name}: its certificate is not accepted: {_last_cause(error).rpartition(': ')[2]}.",
            hint="Use the CA that signed it, and the name or address that it was made for.",
        )
    if "socket closed" in text:
        return PeerUnavailable(
            f"{name} closed the connection.",
            hint="If it requires TLS or a client certificate, give the CA or the certificate.",
        )
    return PeerUnavailable(f"{name}: {_last_cause(error)}.")


def _last_cause(error: BaseException) -> str:
    return first_line(error).rpartition("last error: ")[2].removeprefix("UNKNOWN: ")


def first_line(error: BaseException) -> str:
    """The first line of a message, without the gRPC debug context that Arrow appends: it hides the cause."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].partition(". gRPC client debug context")[0].rstrip(".")
