# SPDX-License-Identifier: Apache-2.0
"""Counters of a shuffle server since its start, for metrics."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Counters by name. Many threads update them at once, without any other lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]
