# SPDX-License-Identifier: Apache-2.0
"""What a process holds of the machine: descriptors, unnamed files, threads, maps of these files, and memory."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from volley.process.allocator import resident_bytes


@dataclass(frozen=True)
class Held:
    descriptors: int
    unnamed_files: tuple[str, ...]
    maps: int
    threads: int


def held(pid: int | str = "self") -> Held:
    """Unnamed files are those that exchanged data is in."""
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(entry.readlink()))
    return Held(
        # One is that of the directory that is being read.
        descriptors=sum(not target.startswith("/proc/") for target in targets),
        unnamed_files=tuple(sorted(target for target in targets if is_unnamed(target))),
        maps=sum(is_unnamed(line.rstrip()) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()),
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
    )


def is_unnamed(target: str) -> bool:
    """Whether this is a file of exchanged data: memory, or a spill file without a name."""
    return "memfd:volley-shuffle" in target or ("/#" in target and target.endswith("(deleted)"))


# Threads and connections of pools come and go, and caches of a worker fill up.
_MORE_DESCRIPTORS = 40
_MORE_THREADS = 60
_MORE_BYTES = 384 << 20


@dataclass(frozen=True)
class Footprint:
    """What processes hold at a moment when nothing runs."""

    of: dict[int, tuple[int, int, int]]

    @classmethod
    def take(cls, pids: Sequence[int]) -> Footprint:
        return cls({pid: _footprint(pid) for pid in pids})

    def growth(self) -> list[str]:
        """What has grown in those that are still there beyond what is usual."""
        found = []
        limits = (_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_BYTES)
        for pid, before in self.of.items():
            with suppress(FileNotFoundError, ProcessLookupError):
                for what, old, new, more in zip(
                    ("descriptors", "threads", "bytes"), before, _footprint(pid), limits, strict=True
                ):
                    if new > old + more:
                        found.append(f"{pid} had {old} {what}, and has {new}")
        return found


def _footprint(pid: int) -> tuple[int, int, int]:
    found = held(pid)
    return found.descriptors, found.threads, resident_bytes(pid)


def sidecars() -> list[int]:
    """The sidecars of sessions of this process whose master is local."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*/address"):
        with suppress(OSError, ValueError):
            # The directory of a sidecar is named after the JVM that it belongs to.
            if _descends_from(int(path.parent.name.split("-")[3]), os.getpid()):
                found.append(int(json.loads(path.read_text())["pid"]))
    return sorted(found)


def _descends_from(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        pid = int(Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[1])
    return pid == ancestor


class MemorySampler:
    """Samples the resident memory of processes for the duration of a block. `peak_bytes` is the largest of each."""

    def __init__(self, pids: Sequence[int], step_seconds: float = 0.02) -> None:
        self.peak_bytes = {pid: resident_bytes(pid) for pid in pids}
        self._step_seconds = step_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._step_seconds):
            for pid, peak in self.peak_bytes.items():
                self.peak_bytes[pid] = max(peak, resident_bytes(pid))
