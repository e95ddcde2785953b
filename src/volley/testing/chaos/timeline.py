# SPDX-License-Identifier: Apache-2.0
"""Calls functions when their time has come, on one thread."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from types import TracebackType


class Timeline:
    """Runs for the duration of a block. What is not due by its end is not called."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                while not self._is_over and (not self._due or self._due[0][0] > now):
                    self._changed.wait(self._due[0][0] - now if self._due else None)
                    now = time.monotonic()
                if self._is_over:
                    return
                _, _, call = heapq.heappop(self._due)
            call()
