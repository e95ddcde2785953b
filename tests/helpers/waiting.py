# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition instead of for a length of time.

A limit on a wait is there to end a test that would hang. It says nothing about speed, so it is far longer than the wait
takes on a machine that is busy with other tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 120.0


def eventually(condition: Callable[[], object], timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Return once `condition` holds; fail if that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {timeout_seconds:g} s"
        time.sleep(0.01)
