# SPDX-License-Identifier: Apache-2.0
"""What happened on a shuffle server since its start, for metrics."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Readers and writers count on many threads at the same time, outside of every other lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]
