# SPDX-License-Identifier: Apache-2.0
"""Objects of the driver's process that a plan names and does not contain.

A plan is plain data. A Python data source is an object of the user's program: the plan has its digest, and this is
where the driver's own process finds it again. Nothing here can be reached from another process.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

_KEPT = 4096

_lock = threading.Lock()
_held: OrderedDict[str, bytes] = OrderedDict()


def hold(content: bytes) -> str:
    """Keep this; equal contents have equal names. The oldest of many thousands are forgotten."""
    name = hashlib.sha256(content).hexdigest()
    with _lock:
        _held[name] = content
        _held.move_to_end(name)
        while len(_held) > _KEPT:
            _held.popitem(last=False)
    return name


def held(name: str) -> bytes | None:
    with _lock:
        return _held.get(name)
