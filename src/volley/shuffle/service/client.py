# SPDX-License-Identifier: Apache-2.0
"""Calls to shuffle servers, with deadlines and retries. Refusals become errors."""

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
from volley.rpc.shuffle_messages import LEASE_EXPIRED, QUERY_OVER
from volley.security import Security
from volley.shuffle.config import RetryPolicy

# A server that did not answer is avoided for a while, each time for longer.
_FIRST_BACKOFF_SECONDS = 5.0
_LAST_BACKOFF_SECONDS = 60.0
# Timeout of calls to all servers: one that hangs must not delay a query for longer.
_ANNOUNCE_SECONDS = 5.0


class ServerLost(QueryError):
    """A server did not answer, even after retries."""

    code = "SHUFFLE_SERVER_LOST"

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(f"shuffle server {address} does not answer: {why}")


class ServiceClient:
    """A client of all servers of a service. May be used from any thread."""

    def __init__(self, addresses: Sequence[str], security: Security, retry_policy: RetryPolicy) -> None:
        self.addresses = tuple(addresses)
        self._security = security
        self._retry_policy = retry_policy
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._backoffs: dict[str, _Backoff] = {}

    def live(self) -> list[str]:
        """The servers that have not recently failed to answer."""
        now = time.monotonic()
        with self._lock:
            away = {address for address, rest in self._backoffs.items() if now < rest.until}
        return [address for address in self.addresses if address not in away]

    def connect(self, address: str) -> flight.FlightClient:
        """A Flight client to read blocks from a server."""
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
        """Call a server and return its answer. All calls are idempotent, so they may be retried."""
        body = message if isinstance(message, bytes) else encode(message)
        failures = 0
        may_be_old = True
        while True:
            try:
                answer = self._client(address).call(action, body, expect, timeout_seconds=timeout_seconds)
                break
            except PeerRefused as refused:
                self._mark_alive(address)
                raise _error(refused) from None
            except (PeerLost, HandshakeRefused) as error:
                self._disconnect(address)
                if may_be_old and isinstance(error, PeerUnavailable):
                    # The connection may be to a process that has since been replaced; ask the new one.
                    may_be_old = False
                    continue
                failures += 1
                limit = self._retry_policy.attempts if tries is None else tries - 1
                # After a timeout the server hangs, and a retry would take as long again. Nor does a retry make a peer
                # trust us.
                hopeless = isinstance(error, PeerTimedOut | HandshakeRefused)
                if failures > limit or hopeless or stopped():
                    self._mark_lost(address)
                    raise ServerLost(address, error.message) from error
            time.sleep(self._retry_policy.delay(failures))
        self._mark_alive(address)
        return answer

    def call_all(self, action: str, message: Any, expect: Any = Ack) -> dict[str, Any]:
        """Call all servers in parallel, once each. Returns the answers of those that answer."""

        def ask(address: str) -> Any:
            try:
                return self.call(address, action, message, expect, tries=1, timeout_seconds=_ANNOUNCE_SECONDS)
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

    def _mark_alive(self, address: str) -> None:
        with self._lock:
            self._backoffs.pop(address, None)

    def _mark_lost(self, address: str) -> None:
        with self._lock:
            before = self._backoffs.get(address)
            if before is not None and time.monotonic() < before.until:
                return
            seconds = min(2 * before.seconds, _LAST_BACKOFF_SECONDS) if before else _FIRST_BACKOFF_SECONDS
            self._backoffs[address] = _Backoff(seconds, time.monotonic() + seconds)

    def _disconnect(self, address: str) -> None:
        # A gRPC client that could not connect backs off longer each time; a new one does not.
        with self._lock:
            self._clients.pop(address, None)


@dataclass(frozen=True)
class _Backoff:
    seconds: float
    until: float


def _error(refused: PeerRefused) -> QueryError:
    if refused.code == LEASE_EXPIRED:
        hint = "Run the query again if its driver was paused for that long."
        return LeaseExpired(refused.message, hint=hint)
    if refused.code == QUERY_OVER:
        return BlockMissing(refused.message)
    return ShuffleRefused(refused.code, refused.message)
