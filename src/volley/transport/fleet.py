# SPDX-License-Identifier: Apache-2.0
"""The worker daemons of a session as the driver sees them: which are up, and when one is lost.

Each daemon has a `Peer` with its own thread, which polls it for news, each time with a deadline:

    hello  ->  up: watch, watch, watch ...  ->  lost (an error, or no reply in time)  ->  hello ...

When a peer is lost, the attempts that ran on it fail at once. When it answers again, or a new process at its address
does, it gets work again. A fleet outlives queries, so connections and handshakes are made once.

Names and files are looked up every second. A worker that joins gets a peer, and with it the next tasks. One that leaves
the list is retired: it gets no new tasks, and its peer stays as long as a query may read what it holds.

Every worker process has an id. If two addresses lead to the same process, only one of the peers uses it: a worker has
one queue of news per driver, and two peers that share it would take each other's.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow.flight as flight

from volley.errors import NoWorkers, PeerLost, QueryError
from volley.ids import AttemptId, QueryId
from volley.membership import Membership
from volley.rpc.client import Client
from volley.rpc.control import Ack, Bye, News, Progress, Watch
from volley.rpc.handshake import Hello, Identity, process_name
from volley.rpc.messages import Failure, SplitRequest, TaskDone, TaskFailure, WorkerInfo
from volley.security import Security

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_FIRST_PROBE_SECONDS = 0.2
_LAST_PROBE_SECONDS = 5.0
# A worker that queries wait for is asked more often.
_MISSED_PROBE_SECONDS = 0.5
_CALL_THREADS = 16
_SPARE_CLIENTS = 4
# An attempt is started right after its claim; one that is not was cancelled.
_CLAIM_SECONDS = 30.0
_ASK_SECONDS = 5.0

AttemptNews = TaskDone | TaskFailure | SplitRequest | Progress

Listener = Callable[[AttemptNews], None]
"""Receives the split requests and the progress of an attempt, and finally its outcome, on the thread of the peer."""


WORKER_LOST = "WORKER_LOST"
"""The code of an attempt that failed because its worker did not reply or the connection broke."""


class Peer:
    """One daemon. Methods may be called from any thread; those that call the daemon block up to the deadline."""

    def __init__(self, address: str, fleet: Fleet) -> None:
        self.address = address
        self._fleet = fleet
        self._security = fleet.security
        self._driver = fleet.driver
        self._timeout_seconds = fleet.timeout_seconds
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._spare: list[flight.FlightClient] = []
        self._info: WorkerInfo | None = None
        self._draining = False
        self.retired = False
        """Whether it left the list of workers: it gets no new attempts."""
        self._listeners: dict[AttemptId, Listener] = {}
        self._starts = False
        self._claims: dict[AttemptId, float] = {}
        # How often a call was lost, and how many of them were followed by a reply.
        self._losses = self._losses_answered = 0
        self._asked_until = 0.0
        self._closed = threading.Event()
        self._wake = threading.Event()
        self.tried = threading.Event()
        """Set once the handshake has succeeded or failed: the first one, or the first after `probe`."""
        self.missed = False
        """Whether it was lost, and nobody has waited in vain for its return."""
        self.problem = "it has not been contacted yet."
        self._thread = threading.Thread(target=self._run, name=f"volley-peer-{address}", daemon=True)
        self._thread.start()

    @property
    def info(self) -> WorkerInfo | None:
        """The worker, or None if no attempts may be placed on it."""
        with self._lock:
            return None if self._draining or self.retired else self._info

    @property
    def up(self) -> bool:
        return self._info is not None

    def probe(self) -> None:
        """Try to connect now. `tried` is set when that has succeeded or failed."""
        self.tried.clear()
        self._wake.set()

    def give_up(self) -> None:
        """Nobody waits any longer for this worker to come back."""
        self.missed = False

    def call(self, action: str, message: Any, expect: Any = Ack) -> Any:
        """Call the worker and return its reply. Raises PeerLost if there is none, PeerRefused if it refuses."""
        with self._lock:
            client = self._client
        if client is None:
            raise PeerLost(f"worker {self.address} is not connected: {self.problem}")
        return client.call(action, message, expect)

    def doubt(self) -> None:
        """Note that a call was lost.

        Its thread may notice a dead worker later, and until then the worker would look idle: it would get all that
        is tried again.
        """
        with self._lock:
            self._losses += 1

    @property
    def is_doubted(self) -> bool:
        """Whether nothing has been heard of it since a call was lost: it gets no attempts."""
        return self._losses > self._losses_answered

    def claim(self, attempt: AttemptId) -> bool | None:
        """Claim a slot that no attempt of this driver uses. None if the worker must be asked for a reservation.

        The worker is not told, so another driver may use the slot: `start` finds out, and calls `ask_for_a_while`.
        """
        now = time.monotonic()
        info = self.info
        with self._lock:
            if info is None or not self._starts or now < self._asked_until:
                return None
            self._claims = {claimed: until for claimed, until in self._claims.items() if until > now}
            if len(self._claims.keys() | self._listeners.keys()) >= info.slots:
                return False
            self._claims[attempt] = now + _CLAIM_SECONDS
            return True

    def unclaim(self, attempt: AttemptId) -> bool:
        """End a claim. Returns whether there was one."""
        with self._lock:
            return self._claims.pop(attempt, None) is not None

    def end_claims(self, query: QueryId) -> None:
        with self._lock:
            for attempt in [attempt for attempt in self._claims if attempt.query == query]:
                del self._claims[attempt]

    def ask_for_a_while(self) -> None:
        """Others use this worker too: ask it for reservations from now on, for some seconds."""
        with self._lock:
            self._asked_until = time.monotonic() + _ASK_SECONDS

    @property
    def starts(self) -> bool:
        """Whether it understands `start`."""
        return self._starts

    def listen(self, attempt: AttemptId, listener: Listener) -> None:
        """Pass the attempt's split requests to `listener`, and finally its outcome or its loss."""
        with self._lock:
            if self._client is not None:
                self._listeners[attempt] = listener
                return
        listener(self._lost(attempt, self.problem))

    def forget(self, attempt: AttemptId) -> None:
        with self._lock:
            self._listeners.pop(attempt, None)

    def result_client(self) -> flight.FlightClient:
        """A connection for rows, separate from control. Give it back unless it broke."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return self._security.connect(self.address)

    def give_back(self, client: flight.FlightClient) -> None:
        """Keep a connection for the next result: opening one costs as much as a small stage."""
        with self._lock:
            if self._client is not None and len(self._spare) < _SPARE_CLIENTS:
                self._spare.append(client)
                return
        client.close()

    def close(self) -> None:
        """Say goodbye, so that the worker frees what it holds for this driver, and stop the thread."""
        self._closed.set()
        self._wake.set()
        with self._lock:
            client = self._client
        if client is not None:
            with suppress(QueryError):
                client.call("bye", Bye(self._driver), timeout_seconds=1.0)
        self._thread.join(self._timeout_seconds)

    def _run(self) -> None:
        pause_seconds = _FIRST_PROBE_SECONDS
        while not self._closed.is_set():
            self._wake.clear()
            try:
                self._connect()
                pause_seconds = _FIRST_PROBE_SECONDS
                self._watch()
            except QueryError as error:
                self._drop(error.message)
            except Exception as error:
                # Whatever it was, only this thread can reconnect to the worker.
                _log.exception("watching worker %s failed", self.address)
                self._drop(f"{type(error).__name__}: {error}")
            self.tried.set()
            if not self._closed.is_set():
                self._wake.wait(pause_seconds)
            longest = _MISSED_PROBE_SECONDS if self.missed else _LAST_PROBE_SECONDS
            pause_seconds = min(2 * pause_seconds, longest)
        self._drop("the session ended.")

    def _connect(self) -> None:
        # A new client each time: gRPC backs off longer and longer on a channel that could not connect.
        client = Client(self.address, self._security, timeout_seconds=self._timeout_seconds)
        ours = Identity.of_this_process(self._driver)
        # Ask who it is first: to greet it as this driver would end what runs on it for a peer at another address.
        instance = client.greet(Hello(ours, "")).instance
        other = self._fleet.claim(instance, self.address)
        if other != self.address:
            raise PeerLost(f"it is the worker at {other}, which is listed under both addresses.")
        queries = tuple(query.value for query in self._fleet.live_queries())
        welcome = client.greet(Hello(ours, self._driver, queries))
        if welcome.instance != instance:
            raise PeerLost("it was restarted during the handshake.")
        with self._lock:
            self._client = client
            self._losses_answered = self._losses
            self._draining = False
            self.missed = False
            self._starts = welcome.starts
            self._info = WorkerInfo(
                self.address,
                welcome.cores,
                welcome.slots,
                welcome.identity.engine_version,
                runs_python=welcome.runs_python,
                jvm=welcome.jvm,
                no_jvm=welcome.no_jvm,
            )
        self.tried.set()
        self._fleet.announce_return()

    def _watch(self) -> None:
        last = 0
        wait_seconds = min(HEARTBEAT_SECONDS, self._timeout_seconds / 3)
        while not self._closed.is_set():
            losses = self._losses
            news: News = self.call("watch", Watch(self._driver, last, wait_seconds), News)
            # Only of those before this call: a reply may have been on its way when the next one was lost.
            self._losses_answered = losses
            self._draining = news.draining
            for request in news.wants:
                with self._lock:
                    asked = self._listeners.get(request.attempt)
                if asked:
                    _tell(asked, request)
            for progress in news.progress:
                with self._lock:
                    running = self._listeners.get(progress.attempt)
                if running:
                    _tell(running, progress)
            for outcome in news.outcomes:
                last = outcome.number
                with self._lock:
                    listener = self._listeners.pop(outcome.end.attempt, None)
                if listener:
                    _tell(listener, outcome.end)

    def _drop(self, reason: str) -> None:
        self._fleet.unclaim(self.address)
        with self._lock:
            self.missed = self.missed or self._info is not None
            self._client = self._info = None
            self._spare.clear()
            self._claims.clear()
            self.problem = reason
            listeners, self._listeners = self._listeners, {}
        for attempt, listener in listeners.items():
            _tell(listener, self._lost(attempt, reason))

    def _lost(self, attempt: AttemptId, reason: str) -> TaskFailure:
        return TaskFailure(attempt, Failure.WORKER, WORKER_LOST, f"worker {self.address} was lost: {reason}")


def _tell(listener: Listener, news: AttemptNews) -> None:
    """Call a listener. If it fails, the other attempts on this worker must go on."""
    try:
        listener(news)
    except Exception:
        _log.exception("the listener of %s failed", news.attempt)


class Fleet:
    """The peers at the addresses of `members`, and the thread pool from which they are called."""

    def __init__(self, members: Sequence[str], security: Security, timeout_seconds: float) -> None:
        self.security = security
        self.timeout_seconds = timeout_seconds
        self.threads = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="volley-call")
        self._lock = threading.Lock()
        self._returned = threading.Condition()
        self._queries: set[QueryId] = set()
        self._leases: weakref.WeakSet[FleetLease] = weakref.WeakSet()
        self._claims: dict[str, str] = {}
        self.driver = f"{process_name('driver')}, {QueryId.new()}"
        self._membership = Membership(members)
        self._peers: dict[str, Peer] = {}
        self._closed = threading.Event()
        self.look_up()
        if self._membership.may_change:
            threading.Thread(target=self._keep_looking, name="volley-members", daemon=True).start()

    def __getitem__(self, address: str) -> Peer:
        with self._lock:
            return self._peers[address]

    @property
    def peers(self) -> Sequence[Peer]:
        with self._lock:
            return list(self._peers.values())

    def look_up(self) -> None:
        """Add the workers that have joined, and retire those that have left."""
        addresses = self._membership.addresses()
        with self._lock:
            joined = [address for address in addresses if address not in self._peers]
            for address in joined:
                self._peers[address] = Peer(address, self)
            for address, peer in self._peers.items():
                peer.retired = address not in addresses
            left: list[Peer] = []
            if not self._queries and not self._leases:
                gone = [address for address, peer in self._peers.items() if peer.retired]
                left = [self._peers.pop(address) for address in gone]
        for peer in left:
            peer.close()

    def _keep_looking(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                self.look_up()
            except Exception:
                _log.exception("looking for workers failed")

    @property
    def is_up(self) -> bool:
        """Whether any worker answers."""
        return any(peer.up for peer in self.peers)

    def wait(self) -> None:
        """Wait until every worker has been contacted. Raises NoWorkers, with each one's problem, if none is usable.

        If workers were lost, it waits up to `timeout_seconds` for one to come back; but only once, so that queries do
        not keep waiting for workers that are gone.
        """
        self.look_up()
        if not self.is_up:
            for peer in self.peers:
                peer.probe()
        for peer in self.peers:
            peer.tried.wait(self.timeout_seconds + 1)
        with self._returned:
            missed = any(peer.missed for peer in self.peers)
            if self._returned.wait_for(lambda: self.is_up, self.timeout_seconds if missed else 0):
                return
        for peer in self.peers:
            peer.give_up()
        raise self.absence()

    def absence(self) -> NoWorkers:
        """The error for a fleet without usable workers."""
        problems = "; ".join(
            [f"{peer.address}: {'it is draining.' if peer.up else peer.problem}" for peer in self.peers]
            or self._membership.problems()
            or ["nothing is listed."]
        )
        return NoWorkers(
            f"no worker is usable. {problems}",
            hint="Start workers with `volley worker` or `volley cluster`, and check spark.volley.workers.",
        )

    def announce_return(self) -> None:
        """A worker answers again: wake those that wait for one."""
        with self._returned:
            self._returned.notify_all()

    def claim(self, instance: str, address: str) -> str:
        """Use the worker process `instance` under `address`. Returns the address under which it is used already."""
        with self._lock:
            return self._claims.setdefault(instance, address) if instance else address

    def unclaim(self, address: str) -> None:
        with self._lock:
            self._claims = {found: used for found, used in self._claims.items() if used != address}

    def live_queries(self) -> Sequence[QueryId]:
        with self._lock:
            return list(self._queries)

    def begin(self, query: QueryId) -> None:
        with self._lock:
            self._queries.add(query)

    def end(self, query: QueryId) -> None:
        with self._lock:
            self._queries.discard(query)

    @property
    def in_use(self) -> bool:
        """Whether a query runs on it or a lease is open."""
        with self._lock:
            return bool(self._queries or self._leases)

    def lease(self, lease: FleetLease) -> None:
        with self._lock:
            self._leases.add(lease)

    def end_lease(self, lease: FleetLease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def close(self) -> None:
        self._closed.set()
        closing = [threading.Thread(target=peer.close) for peer in self.peers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self.threads.shutdown(wait=False)


class FleetLease:
    """Keeps a shared fleet open until `close`, or until the lease is garbage-collected."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        fleet.lease(self)

    def close(self) -> None:
        self.fleet.end_lease(self)
