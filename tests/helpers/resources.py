# SPDX-License-Identifier: Apache-2.0
"""What a process holds of the machine: descriptors, unnamed files, threads and maps of these files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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
