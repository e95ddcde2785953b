# SPDX-License-Identifier: Apache-2.0
"""What a soak measures, over time, and whether it is flat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from volley.process.allocator import resident_bytes
from volley.testing.chaos.resources import held

# Beyond this a process holds more in the last third than in the second one because it leaks.
_GROWTH = 1.25
_LEAST_SAMPLES = 12


@dataclass(frozen=True)
class Sample:
    """`seconds` since the beginning; the largest resident memory and number of descriptors of any daemon; the bytes in
    the directories of all; the latencies of the queries that ended since the sample before."""

    seconds: float
    resident_bytes: int
    descriptors: int
    disk_bytes: int
    latencies: tuple[float, ...]


def take_sample(
    seconds: float, pids: Sequence[int], directories: Sequence[Path], latencies: Sequence[float]
) -> Sample:
    memory, descriptors = 0, 0
    for pid in pids:
        # One that was killed a moment ago.
        with suppress(OSError):
            memory = max(memory, resident_bytes(pid))
            descriptors = max(descriptors, held(pid).descriptors)
    return Sample(seconds, memory, descriptors, sum(map(_size_bytes, directories)), tuple(latencies))


def find_growth(samples: Sequence[Sample]) -> list[str]:
    """What was more in the last third than in the second one, after a first one to warm up."""
    if len(samples) < _LEAST_SAMPLES:
        return []
    third = len(samples) // 3
    found = []
    for name in ("resident_bytes", "descriptors"):
        before, after = (
            median(getattr(sample, name) for sample in part)
            for part in (samples[third : 2 * third], samples[2 * third :])
        )
        if after > _GROWTH * before:
            found.append(f"{name} rose from {before:.0f} to {after:.0f}")
    return found


def percentile(latencies: Sequence[float], percent: int) -> float:
    if len(latencies) < 2:
        return latencies[0] if latencies else 0.0
    return quantiles(latencies, n=100, method="inclusive")[percent - 1]


def _size_bytes(directory: Path) -> int:
    size = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_blocks * 512
    return size
