# SPDX-License-Identifier: Apache-2.0
"""How much exchanged data a worker keeps in memory."""

from __future__ import annotations

import threading


class MemoryBudget:
    """Counts bytes against `limit_bytes`; shared by all outputs of a worker, on any thread.

    Room is never taken back from an output that has it. `spill_threshold` is the share of the limit from which a new
    output gets none, so that those under way can finish where they began.
    """

    def __init__(self, limit_bytes: int, spill_threshold: float) -> None:
        self.limit_bytes = limit_bytes
        self._threshold_bytes = int(limit_bytes * spill_threshold)
        self._lock = threading.Lock()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def is_full(self) -> bool:
        return self._held_bytes > self.limit_bytes

    def hold(self, size_bytes: int) -> None:
        """Count what is in memory already, such as a batch that an operator handed over."""
        with self._lock:
            self._held_bytes += size_bytes

    def admit(self, size_bytes: int, *, new: bool) -> bool:
        """Reserve room for more of an output; `new` when it has none yet. False: write it to disk."""
        with self._lock:
            limit_bytes = self._threshold_bytes if new else self.limit_bytes
            if self._held_bytes + size_bytes > limit_bytes:
                return False
            self._held_bytes += size_bytes
            return True

    def free(self, size_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= size_bytes
