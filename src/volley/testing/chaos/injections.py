# SPDX-License-Identifier: Apache-2.0
"""Faults that are in force, and how it is known that they hit anything.

A fault that meets nothing proves nothing: a link that is stalled while nobody uses it, a file limit that no write
reaches. Each injection therefore looks at a count of what really happened, before and after.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from volley.testing.chaos import agent
from volley.testing.chaos.faults import TROUBLES, Kind, limit_files, unlimit_files
from volley.testing.proxy import LossyProxy

# Far less than one query exchanges.
_FULL_AT_BYTES = 64 * 2**10
_SLOW_SECONDS = 0.02
_REORDER_SECONDS = 0.1


@dataclass(frozen=True)
class Injection:
    """A fault that may `begin`, which is False if there is nothing to strike. `has_hit` says afterwards whether it met
    anything, and `heal` ends it. Only one is in force on the same `place`: nobody could say which of two has hit."""

    place: Hashable
    begin: Callable[[], bool]
    has_hit: Callable[[], bool]
    heal: Callable[[], None] = lambda: None


def link_injection(proxy: LossyProxy, kind: Kind, chance: random.Random) -> Injection:
    """A fault of the network."""
    own = random.Random(chance.random())
    name, begin, heal = {
        Kind.CUT: ("cut", proxy.cut, None),
        Kind.STALL: ("stall", proxy.stall, proxy.flow),
        Kind.SILENCE: ("silence", proxy.silence, None),
        Kind.SLOW: ("slow", lambda: proxy.slow(_SLOW_SECONDS), proxy.hurry),
        Kind.REORDER: ("slow", lambda: proxy.slow(_REORDER_SECONDS, own), proxy.hurry),
        Kind.REPEAT: ("repeat", lambda: proxy.repeat(own), None),
        Kind.LOSE: ("lose", proxy.lose_next, proxy.keep_next),
    }[kind]
    before = proxy.hits[name]
    # One that ends as it hits makes room for the next one.
    place = (proxy.address, name, None if kind in (Kind.STALL, Kind.SLOW, Kind.REORDER) else before)
    return Injection(place, lambda: begin() is not False, lambda: proxy.hits[name] > before, heal or _nothing)


def stop_injection(pid: int) -> Injection:
    """A process stands still."""
    return Injection(
        (pid, "process"),
        lambda: _kill(pid, signal.SIGSTOP),
        lambda: _state(pid) == "T",
        lambda: resume(pid),
    )


def kill_injection(pid: int, heal: Callable[[], None]) -> Injection:
    """A process is killed, which cannot fail: it is only not there yet, or no more."""

    def begin() -> bool:
        return not is_dead(pid) and _kill(pid, signal.SIGKILL)

    return Injection((pid, "process"), begin, lambda: True, heal)


def disk_injection(pid: int) -> Injection:
    """No more room for the files of a process."""

    def begin() -> bool:
        with suppress(ProcessLookupError):
            limit_files(pid, _FULL_AT_BYTES)
            return True
        return False

    return Injection((pid, "disk"), begin, _hits_more(pid, agent.Trouble.FULL), lambda: unlimit_files(pid))


def inner_injection(pid: int, kind: Kind) -> Injection:
    """What only happens inside a process: one of `TROUBLES`."""
    what = TROUBLES[kind]

    def heal() -> None:
        agent.send(pid, agent.Trouble.NONE)

    return Injection((pid, "trouble"), lambda: agent.send(pid, what), _hits_more(pid, what), heal)


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    _kill(pid, signal.SIGCONT)


def is_dead(pid: int) -> bool:
    return _state(pid) in "ZX"


def _hits_more(pid: int, what: agent.Trouble) -> Callable[[], bool]:
    before = agent.hits(pid, what)
    return lambda: agent.hits(pid, what) > before


def _nothing() -> None:
    pass


def _kill(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _state(pid: int) -> str:
    """The letter of /proc; X for a process that is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[0]
    return "X"
