# SPDX-License-Identifier: Apache-2.0
"""Restores the number of replicas when a server is lost or about to leave.

    driver       sees at a renewal which servers are gone or draining, and tells the others
    a holder     of each block that has too few replicas asks another server for one
    that one     pulls the block, verifies it, and commits it

Of the servers that have a block, the one that is leaving sends it, or else the first that is left. Readers ask all
servers when those that a block's location names do not have it.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa
import pyarrow.flight as flight

from volley.errors import QueryError, ShuffleRefused
from volley.ids import AttemptId
from volley.rpc.codec import encode
from volley.rpc.shuffle_messages import UNAVAILABLE, PullBlock, Replicate
from volley.security import Security
from volley.shuffle.base import BlockRequest
from volley.shuffle.config import RetryPolicy
from volley.shuffle.frames import Kind, unframe
from volley.shuffle.service.client import ServerLost, ServiceClient
from volley.shuffle.service.replicas import Copy
from volley.shuffle.service.server_state import ShuffleServerState

_log = logging.getLogger(__name__)
_STALL_SECONDS = 60.0
_STOP_SECONDS = 5.0
_MESSAGE_BYTES = 4 * 2**20


class Replicator:
    """Sends blocks of one server to others, one after the other on a thread of its own, and takes theirs."""

    def __init__(
        self, state: ShuffleServerState, security: Security, stall_seconds: float = _STALL_SECONDS
    ) -> None:
        self._state = state
        self._stall_seconds = stall_seconds
        self._client = ServiceClient((), security, RetryPolicy(0, 0.0, stall_seconds))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        # The blocks of this leaving server that others have already.
        self._moved: set[tuple[AttemptId, int]] = set()

    def replicate(self, message: Replicate) -> None:
        """Begin to send what has too few replicas. What fails is tried again with the next message."""
        with self._lock:
            is_busy = self._thread is not None and self._thread.is_alive()
            if is_busy or self._closing.is_set():
                return
            self._thread = threading.Thread(
                target=self._send_all, args=(message,), name="volley-replicas", daemon=True
            )
            self._thread.start()

    def has_moved_all(self) -> bool:
        """Whether other servers have all that this one has, except for checkpoints. True if it has nothing."""
        return self._state.replicas.held_blocks() <= self._moved

    def close(self, wait_seconds: float = _STOP_SECONDS) -> None:
        """Send nothing more. A call that takes longer than `wait_seconds` is left alone: it changes nothing on disk."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(wait_seconds)

    def _send_all(self, message: Replicate) -> None:
        # Servers that did not answer. Each further block would wait as long again.
        silent: set[str] = set()
        try:
            for copy in self._state.replicas.plan_copies(message):
                self._send(copy, message, silent)
        except Exception:
            _log.exception("replicas could not be restored")

    def _send(self, copy: Copy, message: Replicate, silent: set[str]) -> None:
        pull = PullBlock(copy.block, message.here, (*copy.holders, *copy.targets))
        taken = tuple(target for target in copy.targets if self._ask(target, pull, silent))
        holders = (*copy.holders, *taken)
        if holders and taken == copy.targets and message.here not in holders:
            self._moved.add((copy.block.attempt, copy.block.partition))
        if len(holders) < message.replicas:
            # As long as these are named, later messages find that a replica is missing.
            holders = (*holders, *copy.away)
        self._state.replicas.set_holders(copy.block, holders)

    def _ask(self, target: str, pull: PullBlock, silent: set[str]) -> bool:
        """Ask a server to take a replica. Returns whether it has it."""
        if target in silent or self._closing.is_set():
            return False
        try:
            self._client.call(target, "pull", pull, tries=1, timeout_seconds=self._stall_seconds)
        except QueryError as error:
            _log.warning("%s takes no replica of %s: %s", target, pull.block, error)
            if isinstance(error, ServerLost):
                silent.add(target)
            return False
        return True

    def pull(self, message: PullBlock) -> None:
        """Take a replica of a block from another server. Does nothing if it is here."""
        block, source = message.block, message.source
        request = BlockRequest((block,), max_message_bytes=_MESSAGE_BYTES)
        with self._state.replicas.open(block) as replica:
            if replica is None:
                return
            index, parts = b"", []
            try:
                options = flight.FlightCallOptions(timeout=self._stall_seconds)
                for part in self._client.connect(source).do_get(flight.Ticket(encode(request)), options):
                    header, data = unframe(part.data, part.app_metadata)
                    if header.kind is Kind.INDEX:
                        index = data.to_pybytes()
                        continue
                    if header.kind is not Kind.PART:
                        raise ShuffleRefused(UNAVAILABLE, f"{source}: {data.to_pybytes().decode()}")
                    parts.append(data.to_pybytes())
                    if header.last:
                        replica.add(pa.py_buffer(b"".join(parts)))
                        parts = []
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                raise ShuffleRefused(UNAVAILABLE, f"{block} cannot be read from {source}: {error}") from error
            replica.commit(index, message.holders)
