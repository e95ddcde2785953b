# SPDX-License-Identifier: Apache-2.0
"""A deployment whose processes, connections and files can be struck, and healed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from volley.cluster import LocalCluster, Member
from volley.shuffle.factory import close_stores
from volley.testing.chaos.faults import Fault, Kind, damage_one, limit_files, spill_files, unlimit_files
from volley.testing.chaos.resources import Held, held
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.proxy import LossyProxy
from volley.transport.flight import close_fleets

TRANSPORTS = ("local", "flight")
STORES = ("memory", "service", "object")
POINTS = ("hello", "reserve", "run", "watch", "release")
"""Messages from the driver to a worker, as they stand in its calls."""

_WORKERS = 3
_SERVERS = 3
_LEASE_SECONDS = 20
# Far less than one query exchanges.
_FULL_AT_BYTES = 64 * 2**10
_OF_NETWORK = (Kind.CUT, Kind.STALL, Kind.LOSE)


@dataclass(frozen=True)
class _Victim:
    """A process; `worker` and `server` are its number among those of the cluster. The driver itself is neither."""

    pid: int
    worker: int | None = None
    server: int | None = None


class Arena:
    """Runs workers and shuffle servers for the duration of a block. The driver reaches workers through proxies."""

    def __init__(self, transport: str, store: str, directory: Path) -> None:
        self.transport = transport
        self.store = store
        self._objects = directory / "objects"
        self._spill = directory / "spill"
        for path in (self._objects, self._spill):
            path.mkdir(parents=True, exist_ok=True)
        settings = {"spark.volley.shuffle.spillThreshold": "0"}
        if store == "object":
            settings |= {"spark.volley.shuffle.store": f"file://{self._objects}"}
        self._cluster = LocalCluster(
            _WORKERS if transport == "flight" else 0,
            cores=1,
            memory="512m",
            settings=settings,
            services=_SERVERS if store == "service" else 0,
            arguments=("--dir", str(self._spill)),
            # A server that was down when a query ended learns of it when the lease ends.
            service_arguments=("--lease-seconds", str(_LEASE_SECONDS)),
        )
        self._proxies: list[LossyProxy] = []
        self._limited: set[int] = set()

    def __enter__(self) -> Arena:
        self._cluster.start()
        self._proxies = [LossyProxy(_port(address)) for address in self._cluster.addresses]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_fleets()
        close_stores()
        for proxy in self._proxies:
            proxy.close()
        self._cluster.close()

    @property
    def settings(self) -> dict[str, str]:
        """The options of a session that runs here. Every query is distributed, and exchanged data goes to disk."""
        own = {
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.volley.worker.timeoutSeconds": "4",
            "spark.volley.timeoutSeconds": "120",
            "spark.volley.shuffle.timeoutSeconds": "4",
            "spark.volley.shuffle.retryDelayMs": "50",
            **DISTRIBUTED_SETTINGS,
        }
        chosen = self._cluster.settings
        if self.transport == "flight":
            return chosen | own | {"spark.volley.workers": ",".join(proxy.address for proxy in self._proxies)}
        del chosen["spark.volley.transport"], chosen["spark.volley.workers"]
        # So little that embedded workers spill what they exchange.
        small = {"spark.volley.memory": "256m", "spark.volley.shuffle.memoryFraction": "0.001"}
        return chosen | own | small | {"spark.volley.local.workers": str(_WORKERS)}

    def kinds(self) -> tuple[Kind, ...]:
        """The faults that can happen here."""
        remote = self.transport == "flight"
        files = (Kind.FLIP, Kind.TRUNCATE, Kind.FULL)
        processes = (Kind.STOP, Kind.KILL) if remote or self.store == "service" else ()
        return (_OF_NETWORK if remote else ()) + processes + files

    def watch(self, on_message: Callable[[str], None] | None) -> None:
        """Call `on_message` with the name of each message to a worker that is one of `POINTS`."""

        def look(data: bytes) -> None:
            for point in POINTS:
                if on_message is not None and point.encode() in data:
                    on_message(point)

        for proxy in self._proxies:
            proxy.on_request = look if on_message is not None else None

    def strike(self, fault: Fault, chance: random.Random) -> bool:
        """Let it happen now. False if there was nothing to strike."""
        if fault.kind in _OF_NETWORK:
            return self._strike_network(fault)
        victim = self._victim(fault)
        match fault.kind:
            case Kind.KILL | Kind.STOP:
                if victim.pid == os.getpid():
                    return False
                number = signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGSTOP
                with suppress(ProcessLookupError):
                    os.kill(victim.pid, number)
                    return True
                return False
            case Kind.FULL:
                limit_files(victim.pid, _FULL_AT_BYTES)
                self._limited.add(victim.pid)
                return True
            case _:
                return damage_one(self._files(victim), fault.kind, chance)

    def resume(self) -> None:
        """End the faults that last: stalls, stops and full disks."""
        for proxy in self._proxies:
            proxy.resume()
        for member in (*self._cluster.members, *self._cluster.servers):
            if member.alive:
                member.process.send_signal(signal.SIGCONT)
        for pid in self._limited:
            unlimit_files(pid)
        self._limited.clear()

    def heal(self) -> None:
        """Resume, and start what was killed again, at the same addresses."""
        self.resume()
        dead = [member for member in self._cluster.members if not member.alive]
        for member in dead:
            number = self._cluster.members.index(member)
            self._cluster.members.remove(member)
            member.log.close()
            (new,) = self._cluster.add(port=_port(member.address))
            self._cluster.members.remove(new)
            self._cluster.members.insert(number, new)
        gone = [number for number, server in enumerate(self._cluster.servers) if not server.alive]
        if gone:
            self._cluster.restart_servers(*gone)

    def leaks(self) -> list[str]:
        """What queries that are over have left behind."""
        found = []
        for member, health in zip(self._cluster.members, self._cluster.health(), strict=True):
            if health is None:
                found.append(f"worker {member.address} does not answer")
            elif health.held_bytes or health.running:
                found.append(
                    f"worker {member.address} holds {health.held_bytes} bytes, {health.running} attempts"
                )
        for server, state in zip(self._cluster.servers, self._cluster.service_health(), strict=True):
            if state is None:
                found.append(f"server {server.address} does not answer")
            elif state.queries:
                found.append(f"server {server.address} knows {state.queries} queries")
        found += [f"object {path}" for path in self._objects.rglob("*") if path.is_file()]
        found += [f"{pid} has {file} open" for pid in self._pids() for file in _shuffle_files(held(pid))]
        return found

    def spilled(self) -> list[Path]:
        """What is left in the spill directory once the arena is closed."""
        return list(self._spill.rglob("*"))

    # -------------------------------------------------------------------------------------------------- helpers

    def _strike_network(self, fault: Fault) -> bool:
        if not self._proxies:
            return False
        proxy = self._proxies[fault.victim % len(self._proxies)]
        match fault.kind:
            case Kind.CUT:
                proxy.cut()
            case Kind.STALL:
                proxy.stall()
            case _:
                proxy.lose_next()
        return True

    def _victims(self) -> list[_Victim]:
        members, running = self._cluster.members, self._cluster.servers
        workers = [_Victim(member.pid, worker=n) for n, member in enumerate(members) if member.alive]
        servers = [_Victim(member.pid, server=n) for n, member in enumerate(running) if member.alive]
        return workers + servers or [_Victim(os.getpid())]

    def _victim(self, fault: Fault) -> _Victim:
        victims = self._victims()
        if self.transport == "local" and fault.kind in (Kind.FLIP, Kind.TRUNCATE, Kind.FULL):
            victims.append(_Victim(os.getpid()))
        return victims[fault.victim % len(victims)]

    def _files(self, victim: _Victim) -> Iterator[Path]:
        yield from (path for path in self._objects.rglob("*") if path.is_file())
        if victim.server is not None:
            yield from _named_files(self._cluster.servers[victim.server])
        yield from spill_files(victim.pid)

    def _pids(self) -> list[int]:
        """The processes that keep exchanged data. With transport local the driver is one of them."""
        own = [os.getpid()] if self.transport == "local" else []
        return [member.pid for member in (*self._cluster.members, *self._cluster.servers)] + own


def _named_files(server: Member) -> Iterator[Path]:
    """The chunk files that a shuffle server has open; not its journal."""
    with suppress(OSError):
        for entry in Path(f"/proc/{server.pid}/fd").iterdir():
            with suppress(OSError):
                target = entry.readlink()
                if "server-" in str(target) and "journal" not in target.name and target.is_file():
                    yield target


def _shuffle_files(found: Held) -> list[str]:
    # The log of a daemon is an unnamed file of the temporary directory, too.
    places = ("memfd", "/spill/", "/volley-spill-")
    return [name for name in found.unnamed_files if any(place in name for place in places)]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class Countdown:
    """Calls `strike` for each fault whose moment is a message, when that message passes."""

    def __init__(self, faults: tuple[Fault, ...], strike: Callable[[Fault], None]) -> None:
        self._waiting = [fault for fault in faults if fault.moment.point]
        self._strike = strike
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            self._seen[point] = self._seen.get(point, 0) + 1
            due = [
                fault
                for fault in self._waiting
                if fault.moment.point == point and fault.moment.count <= self._seen[point]
            ]
            for fault in due:
                self._waiting.remove(fault)
        for fault in due:
            # Not on the thread that forwards the message: it may have to wait for something to strike.
            if fault.kind.damages_files:
                threading.Thread(target=self._strike, args=(fault,), daemon=True).start()
            else:
                self._strike(fault)
