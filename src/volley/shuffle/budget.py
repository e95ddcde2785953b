# SPDX-License-Identifier: Apache-2.0
"""The memory budget for a worker's exchanged data."""

from __future__ import annotations

import threading


class MemoryBudget:
    """Counts bytes against `limit_bytes`. Shared by all sinks of a worker; safe to use from any thread.

    A sink keeps the memory that it has been given.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def is_full(self) -> bool:
        return self._held_bytes > self.limit_bytes

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are in memory already, such as a batch from an operator."""
        with self._lock:
            self._held_bytes += size_bytes

    def admit(self, size_bytes: int, share: float = 1.0) -> bool:
        """Reserve memory, unless more than this share of the limit would be in use. False: it must go to disk."""
        with self._lock:
            if self._held_bytes + size_bytes > int(self.limit_bytes * share):
                return False
            self._held_bytes += size_bytes
            return True

    def free(self, size_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= size_bytes
