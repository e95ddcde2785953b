# SPDX-License-Identifier: Apache-2.0
"""Who belongs to a cluster: addresses in an option, all addresses behind a DNS name, or the lines of a file.

    10.0.0.5:7070                a daemon
    dns:volley-worker:7070       every address of this name, such as a headless service of Kubernetes
    file:/etc/volley/workers     a daemon a line, host:port; empty lines and those that begin with # do not count

Names and files are looked up again while they are used. If that fails, what was found last still holds: an outage of
DNS must not take workers away.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+):\d{1,5}")
_DNS = "dns:"
_FILE = "file:"
# Files are read on every call; DNS answers are cached.
_DNS_SECONDS = 5.0

Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a name, without ports. Raises OSError if it cannot be resolved."""


def parse_members(text: str) -> tuple[str, ...]:
    """Parse a list of addresses, names and files, without duplicates. ValueError for anything else."""
    members = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for member in members:
        is_file = member.startswith(_FILE) and Path(member.removeprefix(_FILE)).is_absolute()
        if not is_file and not _ADDRESS.fullmatch(member.removeprefix(_DNS)):
            raise ValueError(
                f"expected host:port, dns:name:port or file:/path, ...; {member!r} is none of them"
            )
    return members


def resolve_name(host: str, port: int) -> list[str]:
    """All addresses of a name, by DNS or the hosts file."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(info[4][0]) for info in found})


class Membership:
    """The addresses behind `members`. Thread-safe; DNS is queried on the calling thread."""

    def __init__(
        self,
        members: Sequence[str],
        resolve: Resolve = resolve_name,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = tuple(members)
        self._resolve = resolve
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, tuple[str, ...]] = {}
        self._asked: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    @property
    def may_change(self) -> bool:
        return any(member.startswith((_DNS, _FILE)) for member in self.members)

    def addresses(self) -> tuple[str, ...]:
        """The daemons that belong to it now, without duplicates."""
        with self._lock:
            return tuple(dict.fromkeys(address for member in self.members for address in self._of(member)))

    def problems(self) -> tuple[str, ...]:
        """What could not be looked up the last time."""
        with self._lock:
            return tuple(self._problems.values())

    def _of(self, member: str) -> tuple[str, ...]:
        if not member.startswith((_DNS, _FILE)):
            return (member,)
        now = self._clock()
        if member.startswith(_DNS) and member in self._asked and now - self._asked[member] < _DNS_SECONDS:
            return self._found.get(member, ())
        self._asked[member] = now
        try:
            self._found[member] = self._look_up(member)
            self._problems.pop(member, None)
        except (OSError, ValueError) as error:
            if member not in self._problems:
                _log.warning("%s cannot be looked up: %s", member, error)
            self._problems[member] = f"{member}: {error}"
        return self._found.get(member, ())

    def _look_up(self, member: str) -> tuple[str, ...]:
        if member.startswith(_FILE):
            return read_member_file(Path(member.removeprefix(_FILE)))
        host, _, port = member.removeprefix(_DNS).rpartition(":")
        return tuple(_join(address, port) for address in self._resolve(host.strip("[]"), int(port)))


def read_member_file(path: Path) -> tuple[str, ...]:
    """The addresses in a file, one a line. OSError if it cannot be read, ValueError for anything else in it."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    addresses = tuple(line for line in lines if line and not line.startswith("#"))
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            # The file may be half written, so the previous content still holds.
            raise ValueError(f"{address!r:.60} is not host:port")
    return addresses


def _join(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def resolve_option(settings: Mapping[str, str], key: str) -> dict[str, str]:
    """The settings, with the addresses of this moment in place of the names and files of one option.

    A value that cannot be parsed stays: whoever reads the options reports it.
    """
    try:
        members = parse_members(settings.get(key, ""))
    except ValueError:
        return dict(settings)
    if not Membership(members).may_change:
        return dict(settings)
    return {**settings, key: ",".join(current_addresses(members))}


_lock = threading.Lock()
_shared: dict[tuple[str, ...], Membership] = {}


def current_addresses(members: Sequence[str]) -> tuple[str, ...]:
    """The addresses behind `members` now. What was found last is remembered in this process."""
    key = tuple(members)
    if not Membership(key).may_change:
        return key
    with _lock:
        membership = _shared.setdefault(key, Membership(key))
    return membership.addresses()
