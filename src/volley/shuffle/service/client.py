# SPDX-License-Identifier: Apache-2.0
"""Calls to shuffle servers: with a deadline, tried again where that can help, and refusals as errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as flight

from volley.errors import (
    BlockMissing,
    HandshakeRefused,
    LeaseExpired,
    PeerLost,
    PeerRefused,
    PeerTimedOut,
    PeerUnavailable,
    QueryError,
    ShuffleRefused,
)
from volley.rpc.client import Client
from volley.rpc.codec import encode
from volley.rpc.control import Ack
from volley.rpc.service import LEASE_EXPIRED, QUERY_OVER
from volley.security import Security
from volley.shuffle.config import RetryPolicy

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
        super().__init__(f"shuffle server {address} does not answer: {why}")


class ServiceClient:
    """The servers of a service as this process sees them. For any thread."""

    def __init__(self, addresses: Sequence[str], security: Security, retry_policy: RetryPolicy) -> None:
        self.addresses = tuple(addresses)
        self._security = security
        self._retry_policy = retry_policy
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._resting: dict[str, _Rest] = {}

    def live(self) -> list[str]:
        """The servers that are not known to be away."""
        now = time.monotonic()
        with self._lock:
            away = {address for address, rest in self._resting.items() if now < rest.until}
        return [address for address in self.addresses if address not in away]

    def connect(self, address: str) -> flight.FlightClient:
        """For the blocks that a server has."""
        return self._client(address).flight

    def call(
        self,
        address: str,
        action: str,
        message: Any,
        expect: Any = Ack,
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
                answer = self._client(address).call(action, body, expect, timeout_seconds=timeout_seconds)
                break
            except PeerRefused as refused:
                self._answered(address)
                raise _error(refused) from None
            except (PeerLost, HandshakeRefused) as error:
                self._disconnect(address)
                if may_be_old and isinstance(error, PeerUnavailable):
                    # The connection may be to a process that has gone; what is there now has not been asked yet.
                    may_be_old = False
                    continue
                failures += 1
                limit = self._retry_policy.attempts if tries is None else tries - 1
                # One that does not answer in all that time hangs; asking again would take as long again. Nor does
                # asking again make a peer trust us.
                hopeless = isinstance(error, PeerTimedOut | HandshakeRefused)
                if failures > limit or hopeless or stopped():
                    self._lost(address)
                    raise ServerLost(address, error.message) from error
            time.sleep(self._retry_policy.delay(failures))
        self._answered(address)
        return answer

    def call_all(self, action: str, message: Any, expect: Any = Ack) -> dict[str, Any]:
        """The answers of those that answer, asked once each and all at once."""

        def ask(address: str) -> Any:
            try:
                return self.call(address, action, message, expect, tries=1, timeout_seconds=_WORD_SECONDS)
            except (ServerLost, ShuffleRefused, BlockMissing):
                return None

        with ThreadPoolExecutor(len(self.addresses), thread_name_prefix="volley-service") as threads:
            answers = dict(zip(self.addresses, threads.map(ask, self.addresses), strict=True))
        return {address: answer for address, answer in answers.items() if answer is not None}

    def _client(self, address: str) -> Client:
        with self._lock:
            if address not in self._clients:
                seconds = self._retry_policy.stall_seconds
                self._clients[address] = Client(
                    address,
                    self._security,
                    role="shuffle server",
                    timeout_seconds=seconds,
                    hang_seconds=seconds,
                )
            return self._clients[address]

    def _answered(self, address: str) -> None:
        with self._lock:
            self._resting.pop(address, None)

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


def _error(refused: PeerRefused) -> QueryError:
    if refused.code == LEASE_EXPIRED:
        hint = "A driver that was paused for so long has to run the query again."
        return LeaseExpired(refused.message, hint=hint)
    if refused.code == QUERY_OVER:
        return BlockMissing(refused.message)
    return ShuffleRefused(refused.code, refused.message)
