# SPDX-License-Identifier: Apache-2.0
"""Calls to shuffle servers: with a deadline, tried again where that can help, and refusals as errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import BlockMissing, LeaseExpired, QueryError, ShuffleRefused
from volley.security import Security
from volley.shuffle.fetch import FINAL, RetryPolicy
from volley.shuffle.service.messages import LEASE_EXPIRED, QUERY_OVER
from volley.transport.codec import decode, encode
from volley.transport.control import Refused

# A server that did not answer is left alone for a while, each time for longer.
_FIRST_REST_SECONDS = 5.0
_LAST_REST_SECONDS = 60.0
# Such words are said to all servers, and one that hangs must not hold up a query for longer.
_WORD_SECONDS = 5.0


class ServerLost(QueryError):
    """A server did not answer, however often it was asked."""

    code = "SHUFFLE_SERVER_LOST"

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(f"shuffle server {address} does not answer: {why}.")


class ServiceClient:
    """The servers of a service as this process sees them. For any thread."""

    def __init__(self, addresses: Sequence[str], security: Security, retry_policy: RetryPolicy) -> None:
        self.addresses = tuple(addresses)
        self._security = security
        self._retry_policy = retry_policy
        self._lock = threading.Lock()
        self._clients: dict[str, flight.FlightClient] = {}
        self._resting: dict[str, _Rest] = {}

    def live(self) -> list[str]:
        """The servers that are not known to be away."""
        now = time.monotonic()
        with self._lock:
            away = {address for address, rest in self._resting.items() if now < rest.until}
        return [address for address in self.addresses if address not in away]

    def connect(self, address: str) -> flight.FlightClient:
        with self._lock:
            if address not in self._clients:
                self._clients[address] = self._security.connect(address, self._retry_policy.stall_seconds)
            return self._clients[address]

    def call(
        self,
        address: str,
        action: str,
        message: Any,
        *,
        tries: int | None = None,
        timeout_seconds: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Any:
        """What the server answers. Every call may be made twice: each says what is to be, not what is to be added."""
        body = message if isinstance(message, bytes) else encode(message)
        failures = 0
        may_be_old = True
        while True:
            try:
                answer = self._ask(address, action, body, timeout_seconds)
                break
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                self._disconnect(address)
                if may_be_old and isinstance(error, flight.FlightUnavailableError):
                    # The connection may be to a process that has gone; what is there now has not been asked yet.
                    may_be_old = False
                    continue
                failures += 1
                limit = self._retry_policy.attempts if tries is None else tries - 1
                # One that does not answer in all that time hangs; asking again would take as long again.
                hopeless = isinstance(error, (*FINAL, flight.FlightTimedOutError))
                if failures > limit or hopeless or stopped():
                    self._lost(address)
                    raise ServerLost(address, _first_line(error)) from error
            time.sleep(self._retry_policy.delay(failures))
        with self._lock:
            self._resting.pop(address, None)
        if isinstance(answer, Refused):
            raise _error(address, answer)
        return answer

    def call_all(self, action: str, message: Any) -> dict[str, Any]:
        """The answers of those that answer, asked once each and all at once."""

        def ask(address: str) -> Any:
            try:
                return self.call(address, action, message, tries=1, timeout_seconds=_WORD_SECONDS)
            except (ServerLost, ShuffleRefused, BlockMissing):
                return None

        with ThreadPoolExecutor(len(self.addresses), thread_name_prefix="volley-service") as threads:
            answers = dict(zip(self.addresses, threads.map(ask, self.addresses), strict=True))
        return {address: answer for address, answer in answers.items() if answer is not None}

    def _ask(self, address: str, action: str, body: bytes, timeout_seconds: float | None) -> Any:
        options = flight.FlightCallOptions(timeout=timeout_seconds or self._retry_policy.stall_seconds)
        (reply,) = self.connect(address).do_action(flight.Action(action, body), options)
        return decode(reply.body.to_pybytes())

    def _lost(self, address: str) -> None:
        with self._lock:
            before = self._resting.get(address)
            if before is not None and time.monotonic() < before.until:
                return
            seconds = min(2 * before.seconds, _LAST_REST_SECONDS) if before else _FIRST_REST_SECONDS
            self._resting[address] = _Rest(seconds, time.monotonic() + seconds)

    def _disconnect(self, address: str) -> None:
        # A client that could not connect waits longer and longer before it tries again.
        with self._lock:
            self._clients.pop(address, None)


@dataclass(frozen=True)
class _Rest:
    seconds: float
    until: float


def _error(address: str, refused: Refused) -> QueryError:
    message = f"shuffle server {address}: {refused.message}"
    if refused.code == LEASE_EXPIRED:
        return LeaseExpired(message, hint="A driver that was paused for so long has to run the query again.")
    if refused.code == QUERY_OVER:
        return BlockMissing(message)
    return ShuffleRefused(refused.code, message)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
