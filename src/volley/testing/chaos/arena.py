# SPDX-License-Identifier: Apache-2.0
"""A deployment whose processes, connections and files can be struck, and healed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from volley.cluster import LocalCluster, Member
from volley.shuffle.factory import close_stores
from volley.testing.chaos import agent, objects
from volley.testing.chaos.faults import (
    OF_FILES,
    OF_NETWORK,
    OF_PROCESSES,
    OF_S3,
    TROUBLES,
    Fault,
    Kind,
    damage_one,
    spill_files,
)
from volley.testing.chaos.injections import (
    Injection,
    disk_injection,
    inner_injection,
    is_dead,
    kill_injection,
    link_injection,
    stop_injection,
)
from volley.testing.chaos.objects import FolderObjects, Objects, S3Objects
from volley.testing.chaos.resources import held, sidecars
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.proxy import LossyProxy
from volley.transport.flight import close_fleets

TRANSPORTS = ("local", "flight", "spark")
STORES = ("memory", "service", "file", "s3")

_TO_WORKERS = ("hello", "start", "watch", "release", "feed")
_TO_SERVERS = ("keep", "reserve", "push", "commit", "release")

DEADLINE_SECONDS = 180
"""Of a query."""

_WORKERS = 3
_SERVERS = 3
_LEASE_SECONDS = 20
# How much of the log of a daemon that ended is shown.
_SAID = 2000
# A file to damage exists for a moment only.
_LOOK_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True)
class _Victim:
    """A process. `server` is its number among the shuffle servers, if it is one."""

    pid: int
    server: int | None = None


class Arena:
    """Runs workers and shuffle servers for the duration of a block. Drivers and workers reach workers and servers
    through proxies."""

    def __init__(self, transport: str, store: str, directory: Path) -> None:
        self.transport = transport
        self.store = store
        self._directory = directory
        self._spill = directory / "spill"
        self._spill.mkdir(parents=True, exist_ok=True)
        self._objects: Objects | None = None
        self._cluster = LocalCluster(
            0,
            cores=1,
            memory="512m",
            settings={"spark.volley.shuffle.spillThreshold": "0"},
            services=_SERVERS if store == "service" else 0,
            arguments=("--dir", str(self._spill)),
            # A server that was down when a query ended learns of it when the lease ends.
            service_arguments=("--lease-seconds", str(_LEASE_SECONDS)),
        )
        self._proxies: list[LossyProxy] = []
        self._to_workers: list[LossyProxy] = []
        self._in_force: dict[Hashable, Injection] = {}
        self._striking = threading.Lock()
        self._killed: set[int] = set()
        self._ended: list[str] = []
        self._restarts: list[threading.Thread] = []
        self._lock = threading.RLock()

    def __enter__(self) -> Arena:
        agent.install()
        with agent.inject_into_children(self._directory / "agent"):
            try:
                self._start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        close_fleets()
        close_stores()
        for proxy in self._proxies:
            proxy.close()
        self._cluster.close()
        if self._objects is not None:
            self._objects.close()

    @property
    def settings(self) -> dict[str, str]:
        """The options of a session that runs here. Every query is distributed, and exchanged data goes to disk."""
        own = {
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.volley.worker.timeoutSeconds": "4",
            # Longer than a query takes on a machine that others use.
            "spark.volley.timeoutSeconds": str(DEADLINE_SECONDS),
            "spark.volley.shuffle.timeoutSeconds": "4",
            "spark.volley.shuffle.retryDelayMs": "50",
            # Far more faults strike than elsewhere.
            "spark.volley.task.attempts": "8",
            **DISTRIBUTED_SETTINGS,
        }
        chosen = self._cluster.settings
        if self.transport == "flight":
            return chosen | own | {"spark.volley.workers": ",".join(p.address for p in self._to_workers)}
        del chosen["spark.volley.workers"]
        # So little that what is exchanged is spilled.
        own |= {"spark.volley.memory": "256m", "spark.volley.shuffle.memoryFraction": "0.001"}
        if self.transport == "spark":
            return chosen | own | {"spark.volley.transport": "spark"}
        del chosen["spark.volley.transport"]
        return chosen | own | {"spark.volley.local.workers": str(_WORKERS)}

    @property
    def points(self) -> tuple[str, ...]:
        """The names of messages that pass a proxy here."""
        found: tuple[str, ...] = _TO_WORKERS if self.transport == "flight" else ()
        if self.store == "service":
            found += tuple(point for point in _TO_SERVERS if point not in found)
        return found + (objects.POINTS if self.store == "s3" else ())

    def kinds(self) -> tuple[Kind, ...]:
        """The faults that can happen here."""
        has_links = self.transport == "flight" or self.store == "service"
        processes = OF_PROCESSES if has_links else ()
        if self.transport == "spark":
            # Spark starts the sidecar again when it runs the next task.
            processes = tuple(dict.fromkeys((*processes, Kind.STOP, Kind.KILL)))
        return (
            *(OF_NETWORK if has_links else ()),
            *processes,
            *OF_FILES,
            *TROUBLES,
            *(OF_S3 if self.store == "s3" else ()),
        )

    def watch(self, on_message: Callable[[str], None] | None) -> None:
        """Call `on_message` with the name of each message that is one of `points`."""

        def look_for(points: tuple[str, ...]) -> Callable[[bytes], None]:
            def look(data: bytes) -> None:
                for point in points:
                    if on_message is not None and point.encode() in data:
                        on_message(point)

            return look

        for proxy in self._proxies:
            points = _TO_WORKERS if proxy in self._to_workers else _TO_SERVERS
            proxy.on_request = look_for(points) if on_message is not None else None
        if self._objects is not None:
            self._objects.watch(on_message)

    def inject(self, fault: Fault, chance: random.Random) -> Injection | None:
        """Let it happen now, until `end`. None if there is nothing to strike, or such a fault is in force there."""
        if fault.kind.damages_files:
            return self._damage(fault, chance)
        with self._striking:
            injection = self._make_injection(fault, chance)
            if injection is None or injection.place in self._in_force or not injection.begin():
                return None
            self._in_force[injection.place] = injection
            return injection

    def end(self, injection: Injection) -> bool:
        """End what lasts, once. Whether it hit anything."""
        with self._striking:
            has_hit = injection.has_hit()
            if self._in_force.get(injection.place) is injection:
                del self._in_force[injection.place]
                injection.heal()
            return has_hit

    def resume(self) -> None:
        """End all that lasts: stalls, stops, full disks, clocks, memory."""
        for injection in list(self._in_force.values()):
            self.end(injection)

    def heal(self) -> None:
        """Resume, and start what was killed again, at the same addresses."""
        self.resume()
        for thread in self._restarts:
            thread.join()
        self._restarts.clear()
        self._restart_dead()

    def take_ended(self) -> list[str]:
        """The daemons that have ended since the last call although nobody killed them."""
        ended, self._ended = self._ended, []
        return ended

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
        if self._objects is not None:
            found += self._objects.leftovers()
        for pid in self._pids():
            with suppress(FileNotFoundError, ProcessLookupError):
                unnamed = held(pid).unnamed_files
                found += [f"{pid} has {file} open" for file in unnamed if _holds_exchanged_data(file)]
        return found

    def spilled(self) -> list[Path]:
        """What is left in the spill directory once the arena is closed."""
        return list(self._spill.rglob("*"))

    def daemons(self) -> list[int]:
        """The processes that the arena has started."""
        return [member.pid for member in (*self._cluster.members, *self._cluster.servers)]

    @property
    def directories(self) -> list[Path]:
        """Where daemons keep files."""
        return [self._spill, self._cluster.directory]

    # -------------------------------------------------------------------------------------------------- helpers

    def _start(self) -> None:
        self._cluster.start()
        if self.store in ("file", "s3"):
            self._objects = (
                FolderObjects(self._directory / "objects") if self.store == "file" else S3Objects()
            )
            self._cluster.set_options({"spark.volley.shuffle.store": self._objects.uri})
        if self._cluster.servers:
            to_servers = [LossyProxy(_port(server.address)) for server in self._cluster.servers]
            self._proxies += to_servers
            self._cluster.set_options(
                {"spark.volley.shuffle.service": ",".join(proxy.address for proxy in to_servers)}
            )
        if self.transport == "flight":
            self._cluster.add(_WORKERS)
            self._to_workers = [LossyProxy(_port(address)) for address in self._cluster.addresses]
            self._proxies += self._to_workers

    def _make_injection(self, fault: Fault, chance: random.Random) -> Injection | None:
        if fault.kind in OF_NETWORK:
            proxies = self._proxies
            return (
                link_injection(proxies[fault.victim % len(proxies)], fault.kind, chance) if proxies else None
            )
        if fault.kind in OF_S3:
            return self._objects.injection(fault.kind) if self._objects is not None else None
        victim = self._victim(fault)
        if victim is None or (fault.kind in OF_PROCESSES and victim.pid == os.getpid()):
            return None
        pid = victim.pid
        match fault.kind:
            case Kind.STOP:
                return stop_injection(pid)
            case Kind.KILL | Kind.RESTART:
                self._killed.add(pid)
                return kill_injection(pid, lambda: self._begin_restart(pid))
            case Kind.FULL:
                return disk_injection(pid)
            case _:
                return inner_injection(pid, fault.kind)

    def _damage(self, fault: Fault, chance: random.Random) -> Injection | None:
        deadline = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < deadline:
            victim = self._victim(fault)
            if victim is not None and damage_one(self._files(victim), fault.kind, chance):
                return Injection(object(), lambda: True, lambda: True)
            time.sleep(_LOOK_AGAIN_SECONDS)
        return None

    def _begin_restart(self, pid: int) -> None:
        def restart() -> None:
            while not is_dead(pid):
                time.sleep(_LOOK_AGAIN_SECONDS)
            self._restart_dead()

        thread = threading.Thread(target=restart, daemon=True)
        self._restarts.append(thread)
        thread.start()

    def _restart_dead(self) -> None:
        with self._lock, agent.inject_into_children(self._directory / "agent"):
            members, servers = self._cluster.members, self._cluster.servers
            self._note_ended()
            for number, member in enumerate(list(members)):
                if not member.alive:
                    members.remove(member)
                    member.log.close()
                    (new,) = self._cluster.add(port=_port(member.address))
                    members.remove(new)
                    members.insert(number, new)
            gone = [number for number, server in enumerate(servers) if not server.alive]
            if gone:
                self._cluster.restart_servers(*gone)

    def _note_ended(self) -> None:
        for member in (*self._cluster.members, *self._cluster.servers):
            if not member.alive and member.pid not in self._killed:
                self._killed.add(member.pid)
                member.log.seek(0)
                said = member.log.read().decode(errors="replace")[-_SAID:]
                self._ended.append(f"{member.address} ended with {member.process.returncode}: {said}")

    def _victim(self, fault: Fault) -> _Victim | None:
        members, running = self._cluster.members, self._cluster.servers
        victims = [_Victim(member.pid) for member in members if member.alive]
        if self.transport == "spark" and fault.kind is not Kind.RESTART:
            victims += [_Victim(pid) for pid in sidecars()]
        victims += [_Victim(member.pid, server=n) for n, member in enumerate(running) if member.alive]
        if self.transport == "local" and fault.kind not in OF_PROCESSES:
            victims.append(_Victim(os.getpid()))
        return victims[fault.victim % len(victims)] if victims else None

    def _files(self, victim: _Victim) -> Iterator[Path]:
        if self._objects is not None:
            yield from self._objects.paths()
        if victim.server is not None:
            yield from _named_files(self._cluster.servers[victim.server])
        yield from (file for file, target in spill_files(victim.pid) if _holds_exchanged_data(target))

    def _pids(self) -> list[int]:
        """The processes that keep exchanged data. With transport local the driver is one of them."""
        own = [os.getpid()] if self.transport == "local" else []
        return self.daemons() + own + (sidecars() if self.transport == "spark" else [])


def _named_files(server: Member) -> Iterator[Path]:
    """The chunk files that a shuffle server has open; not its journal."""
    with suppress(OSError):
        for entry in Path(f"/proc/{server.pid}/fd").iterdir():
            with suppress(OSError):
                target = entry.readlink()
                if "server-" in str(target) and "journal" not in target.name and target.is_file():
                    yield target


def _holds_exchanged_data(target: str) -> bool:
    # The log of a daemon is an unnamed file of the temporary directory, too.
    return any(place in target for place in ("memfd", "/spill/", "/volley-spill-"))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
