# SPDX-License-Identifier: Apache-2.0
"""How a worker divides the memory that it was given."""

from __future__ import annotations

from dataclasses import dataclass

# Python, Arrow's own buffers, what is being sent and received: measured at 150-250 MB for a busy worker.
_HEADROOM_FRACTION = 0.1
_HEADROOM_MIN_BYTES = 128 * 2**20


@dataclass(frozen=True)
class WorkerBudget:
    """`shuffle_bytes` is for exchanged data, `operators_bytes` for joins, sorts and aggregates."""

    total_bytes: int
    shuffle_bytes: int
    operators_bytes: int
    headroom_bytes: int

    @classmethod
    def divide(cls, total_bytes: int, shuffle_fraction: float) -> WorkerBudget:
        shuffle = int(total_bytes * shuffle_fraction)
        headroom = min(
            max(int(total_bytes * _HEADROOM_FRACTION), _HEADROOM_MIN_BYTES), (total_bytes - shuffle) // 2
        )
        return cls(total_bytes, shuffle, total_bytes - shuffle - headroom, headroom)

    def __str__(self) -> str:
        return (
            f"{size(self.total_bytes)}: operators {size(self.operators_bytes)}, "
            f"shuffle {size(self.shuffle_bytes)}, headroom {size(self.headroom_bytes)}"
        )


def size(size_bytes: float) -> str:
    """For people: 1.5 GB."""
    for split in ("B", "KB", "MB", "GB"):
        if abs(size_bytes) < 1024 or split == "GB":
            return f"{size_bytes:.0f} {split}" if split == "B" else f"{size_bytes:.1f} {split}"
        size_bytes /= 1024
    raise AssertionError
