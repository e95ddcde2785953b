# SPDX-License-Identifier: Apache-2.0
"""Keeps the resident memory of a worker within its budget.

DataFusion accounts for the memory of sorts, joins and aggregates. Decoded pages, messages, plans and what the
allocators keep are not counted, so a worker watches its resident memory:

    above 75 % of the budget    return freed memory to the system
    above 90 %                  take no new task while one runs: what it frees is needed first
    above 100 %                 drop the caches of plans and footers
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from volley.lower.sessions import drop_caches
from volley.process.allocator import release_freed, resident_bytes
from volley.rpc.start import drop_decoded_plans

_log = logging.getLogger(__name__)

_RELEASE_AT = 0.75
_REFUSE_AT = 0.9
_STEP_SECONDS = 0.1
# Both take milliseconds, and help only once something else was freed.
_RELEASE_SECONDS = 1.0
_DROP_SECONDS = 10.0


def _drop_caches() -> None:
    drop_decoded_plans()
    drop_caches()


class MemoryGuard:
    """Compares `measure` with `limit_bytes`, in a thread of its own between `start` and `close`."""

    def __init__(
        self,
        limit_bytes: int,
        measure: Callable[[], int] = resident_bytes,
        release: Callable[[], None] = release_freed,
        drop: Callable[[], None] = _drop_caches,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._measure = measure
        self._release = _Rarely(release, _RELEASE_SECONDS)
        self._drop = _Rarely(drop, _DROP_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volley-memory", daemon=True)
        self.is_short = False
        """Whether new tasks should wait."""
        self.peak_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Measure once, and act."""
        used = self._measure()
        self.peak_bytes = max(self.peak_bytes, used)
        if used > self._limit_bytes:
            self._drop()
        if used > self._limit_bytes * _RELEASE_AT:
            self._release()
            used = self._measure()
        is_short = used > self._limit_bytes * _REFUSE_AT
        if is_short and not self.is_short:
            _log.info("memory is short: %d of %d MB are in use", used >> 20, self._limit_bytes >> 20)
        self.is_short = is_short

    def _run(self) -> None:
        while not self._stop.wait(_STEP_SECONDS):
            self.check()


class _Rarely:
    """Calls a function, but not again before `seconds` have passed."""

    def __init__(self, function: Callable[[], None], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._called: float | None = None

    def __call__(self) -> None:
        now = time.monotonic()
        if self._called is None or now - self._called >= self._seconds:
            self._called = now
            self._function()
