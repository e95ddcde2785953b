# SPDX-License-Identifier: Apache-2.0
"""Faults inside a process: I/O errors, a clock that jumps, and memory that somebody else takes.

`inject_into_children` lets every Python process that is started in its block listen for these faults: `Trouble` is sent
as a real-time signal. In the driver, where exchanged data of transport local is, `suffer` is called instead. A process
counts what has hit it, which `hits` reads from outside.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

BALLAST_BYTES = 400 << 20
"""More than 75 % of a worker with a budget of 512 MB."""

_RESIDENT = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE

JUMP_SECONDS = 2 * 3600.0
# One failed call is retried somewhere. Several in a row reach other replicas, too.
_FAILING_CALLS = 3
_CALLS = ("pwrite", "pread", "fsync", "fdatasync")
_COUNTS_NAME = "volley-chaos-hits"


class Trouble(IntEnum):
    """What a process suffers, by the number of its signal."""

    EIO = signal.SIGRTMIN + 1
    AHEAD = signal.SIGRTMIN + 2
    BEHIND = signal.SIGRTMIN + 3
    MEMORY = signal.SIGRTMIN + 4
    NONE = signal.SIGRTMIN + 5
    # Not sent: what the system sends when a write goes beyond the limit of a file.
    FULL = signal.SIGXFSZ


_COUNTED = (Trouble.EIO, Trouble.AHEAD, Trouble.BEHIND, Trouble.MEMORY, Trouble.FULL)
_COUNTS = struct.Struct(f"{len(_COUNTED)}Q")


class _Counts:
    """Numbers in memory that other processes find by the name of its descriptor."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._descriptor = os.memfd_create(_COUNTS_NAME)
        os.ftruncate(self._descriptor, _COUNTS.size)
        self._memory = mmap.mmap(self._descriptor, _COUNTS.size)
        self._numbers = dict.fromkeys(_COUNTED, 0)

    def add(self, trouble: Trouble) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has its parent's
        self._numbers[trouble] += 1
        self._memory[:] = _COUNTS.pack(*self._numbers.values())


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: _Counts | None = None
        self.failing_calls = 0
        self.offset_seconds = 0.0
        self.ballast: mmap.mmap | None = None
        self.is_installed = False


_state = _State()


def install() -> None:
    """Make this process able to suffer. Until it does, all calls are the system's."""
    if _state.is_installed:
        return
    _state.is_installed = True
    for name in _CALLS:
        setattr(os, name, _failing(getattr(os, name)))
    _state.counts = _Counts()
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + _offset_seconds()
    time.time_ns = lambda: now_ns() + int(_offset_seconds() * 1e9)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGXFSZ, lambda *_: _count(Trouble.FULL))


def listen() -> None:
    """`install`, and suffer what arrives as a signal."""
    install()
    for trouble in set(Trouble) - {Trouble.FULL}:
        signal.signal(trouble, lambda number, _: suffer(Trouble(number)))


def suffer(trouble: Trouble) -> None:
    match trouble:
        case Trouble.EIO:
            _state.failing_calls = _FAILING_CALLS
        case Trouble.AHEAD:
            _state.offset_seconds = JUMP_SECONDS
        case Trouble.BEHIND:
            _state.offset_seconds = -JUMP_SECONDS
        case Trouble.MEMORY:
            if _state.ballast is None:
                # In one call: the signal that ends it may arrive at any time.
                _state.ballast = mmap.mmap(-1, BALLAST_BYTES, flags=_RESIDENT)
                _count(trouble)
        case Trouble.NONE:
            _state.failing_calls, _state.offset_seconds = 0, 0.0
            if _state.ballast is not None:
                _state.ballast.close()
                _state.ballast = None


def hits(pid: int, trouble: Trouble) -> int:
    """How often a process that listens was really hit: by calls that failed, times that were wrong, writes beyond the
    limit of a file, memory that was taken."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if _COUNTS_NAME in str(entry.readlink()):
                    counts = dict(zip(_COUNTED, _COUNTS.unpack(entry.read_bytes()), strict=True))
                    return int(counts[trouble])
    return 0


def send(pid: int, trouble: Trouble) -> bool:
    """Let a process suffer, this one or one that listens. False if it is gone, or does not listen yet."""
    if pid == os.getpid():
        suffer(trouble)
        return True
    with suppress(OSError):
        if _listens(pid, trouble):
            os.kill(pid, trouble)
            return True
    return False


@contextmanager
def inject_into_children(directory: Path) -> Iterator[None]:
    """Python processes that are started in this block listen. `directory` is for the module that makes them."""
    directory.mkdir(parents=True, exist_ok=True)
    # The interpreter imports this module at its start. The package would take longer to import than this one file.
    (directory / "sitecustomize.py").write_text(
        f"import runpy\nrunpy.run_path({__file__!r}, run_name='chaos_agent')['listen']()\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _failing(call: Callable[..., Any]) -> Callable[..., Any]:
    def failing(*arguments: Any, **named: Any) -> Any:
        if _state.failing_calls:
            with _state.lock:
                if _state.failing_calls:
                    _state.failing_calls -= 1
                    _count(Trouble.EIO)
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments, **named)

    return failing


def _offset_seconds() -> float:
    offset = _state.offset_seconds
    if offset:
        _count(Trouble.AHEAD if offset > 0 else Trouble.BEHIND)
    return offset


def _count(trouble: Trouble) -> None:
    if _state.counts is not None:
        _state.counts.add(trouble)


def _listens(pid: int, trouble: Trouble) -> bool:
    """Whether the process handles the signal. One that does not would end."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (trouble - 1) & 1)
    return False
