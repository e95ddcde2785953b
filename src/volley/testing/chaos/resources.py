# SPDX-License-Identifier: Apache-2.0
"""What a process holds of the machine: descriptors, unnamed files, threads, maps of these files, and memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from volley.allocator import resident_bytes


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
