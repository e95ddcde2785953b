# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition instead of for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], timeout_seconds: float = 30.0) -> None:
    """Return once `condition` holds; fail if that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {timeout_seconds:g} s"
        time.sleep(0.01)
