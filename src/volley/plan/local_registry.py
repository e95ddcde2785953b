# SPDX-License-Identifier: Apache-2.0
"""Objects of the driver's process that plans refer to by name.

A plan is plain data, but a Python data source is an object of the user's program. The plan holds its digest; the
driver's process looks the object up here. Other processes cannot reach it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

_KEPT = 4096

_lock = threading.Lock()
_held: OrderedDict[str, bytes] = OrderedDict()


def register(content: bytes) -> str:
    """Store the content and return its name. Equal contents have equal names; beyond `_KEPT` the oldest are dropped."""
    name = hashlib.sha256(content).hexdigest()
    with _lock:
        _held[name] = content
        _held.move_to_end(name)
        while len(_held) > _KEPT:
            _held.popitem(last=False)
    return name


def lookup(name: str) -> bytes | None:
    with _lock:
        return _held.get(name)
