# SPDX-License-Identifier: Apache-2.0
"""Volley: Spark plans, Arrow runs, Flight shuffles.

`volley.enable(spark)` is all a program needs; the rest is for looking at what happened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# The allocator of Arrow and DataFusion gives freed memory back to the system at once, and gets it again page by page,
# zeroed, with the next batch: a fifth of a query's processor time. It reads this when it is loaded, which is later.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")  # milliseconds

__version__ = "0.1.0"
__all__ = ["cancel", "disable", "enable", "explain", "last_query"]

if TYPE_CHECKING:
    from volley.history import cancel, last_query
    from volley.observe.explain import explain
    from volley.session import disable, enable

_HOMES = {
    "cancel": "volley.history",
    "disable": "volley.session",
    "enable": "volley.session",
    "explain": "volley.observe.explain",
    "last_query": "volley.history",
}


def __getattr__(name: str) -> Any:
    # Workers import this package too, and need neither PySpark nor a JVM: the names load when they are used.
    if name not in _HOMES:
        raise AttributeError(f"module 'volley' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
