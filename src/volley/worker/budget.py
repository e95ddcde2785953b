# SPDX-License-Identifier: Apache-2.0
"""How a worker divides its memory."""

from __future__ import annotations

from dataclasses import dataclass

# For code, Python, decoded pages and network buffers: measured at 150-250 MB in a busy worker.
_HEADROOM_FRACTION = 0.1
_HEADROOM_MIN_BYTES = 192 * 2**20
_OPERATORS_MIN_FRACTION = 0.125


@dataclass(frozen=True)
class WorkerBudget:
    """`shuffle_bytes` are for exchanged data, `operators_bytes` for joins, sorts and aggregates."""

    total_bytes: int
    shuffle_bytes: int
    operators_bytes: int
    headroom_bytes: int

    @classmethod
    def divide(cls, total_bytes: int, shuffle_fraction: float) -> WorkerBudget:
        shuffle = int(total_bytes * shuffle_fraction)
        rest = total_bytes - shuffle
        headroom = max(int(total_bytes * _HEADROOM_FRACTION), _HEADROOM_MIN_BYTES)
        operators = max(rest - headroom, min(int(total_bytes * _OPERATORS_MIN_FRACTION), rest // 2))
        return cls(total_bytes, shuffle, operators, rest - operators)

    def __str__(self) -> str:
        return (
            f"{format_size(self.total_bytes)}: operators {format_size(self.operators_bytes)}, "
            f"shuffle {format_size(self.shuffle_bytes)}, headroom {format_size(self.headroom_bytes)}"
        )


def format_size(size_bytes: float) -> str:
    """A human-readable size, such as 1.5 GB."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size_bytes) < 1024 or unit == "GB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError
