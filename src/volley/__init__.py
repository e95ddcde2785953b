# SPDX-License-Identifier: Apache-2.0
"""Volley: Spark plans, Arrow runs, Flight shuffles.

`volley.enable(spark)` is all a program needs. The rest is for inspecting what happened and for extending Volley.
docs/api.md describes every public name.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from volley.process.allocator import keep_freed_memory
from volley.version import __version__

# The allocators of Arrow and DataFusion read it from the environment when they are loaded, below.
keep_freed_memory()
# Streams of fed scans hold threads of DataFusion while they wait (worker/engine_threads.py), so there must be more than
# one a core. Idle ones sleep: plain DataFusion took no more CPU time for TPC-H with 32 threads than with 2 (two cores).
os.environ.setdefault("TOKIO_WORKER_THREADS", str(max(32, 8 * (os.cpu_count() or 1))))

# gRPC prints its own lines about connections that fail, above the error that says what to do.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = [
    "Block",
    "CheckpointStore",
    "Dashboard",
    "ErrorReport",
    "Estimate",
    "ExplainsAbsence",
    "Explanation",
    "FeedStatus",
    "FrameForecast",
    "History",
    "IngestEndpoint",
    "LocalCluster",
    "NoRoom",
    "NodeVerdict",
    "OperatorReport",
    "PastQuery",
    "QueryReport",
    "Reason",
    "ReportsProgress",
    "RunningTask",
    "SharedStore",
    "ShuffleSink",
    "ShuffleStore",
    "Split",
    "SplitReader",
    "SplitSource",
    "StageReport",
    "StoreFactory",
    "Transport",
    "TransportContext",
    "TransportFactory",
    "Unsupported",
    "VolleyError",
    "__version__",
    "cancel",
    "dashboard",
    "disable",
    "enable",
    "errors",
    "explain",
    "history",
    "last_query",
    "qualify",
]

if TYPE_CHECKING:
    from volley import errors
    from volley.cluster import LocalCluster
    from volley.errors import VolleyError
    from volley.events import FeedStatus
    from volley.observe.dashboard.server import Dashboard
    from volley.observe.dashboard.session import dashboard
    from volley.observe.explain import Explanation, explain
    from volley.observe.history import History, PastQuery, history
    from volley.observe.qualify import FrameForecast, qualify
    from volley.observe.report import ErrorReport, OperatorReport, QueryReport, StageReport
    from volley.query.session_state import cancel, last_query
    from volley.session.enable import disable, enable
    from volley.shuffle.base import (
        Block,
        CheckpointStore,
        SharedStore,
        ShuffleSink,
        ShuffleStore,
        StoreFactory,
    )
    from volley.splits.source import Estimate, Split, SplitReader, SplitSource
    from volley.support.check import NodeVerdict
    from volley.support.reasons import Reason, Unsupported
    from volley.transport.base import (
        ExplainsAbsence,
        IngestEndpoint,
        NoRoom,
        ReportsProgress,
        RunningTask,
        Transport,
        TransportContext,
        TransportFactory,
    )

# Where each name is defined. A test compares this with the imports above.
_HOMES = {
    "volley.cluster": ("LocalCluster",),
    "volley.errors": ("VolleyError",),
    "volley.events": ("FeedStatus",),
    "volley.query.session_state": ("cancel", "last_query"),
    "volley.observe.dashboard.session": ("dashboard",),
    "volley.observe.dashboard.server": ("Dashboard",),
    "volley.observe.explain": ("Explanation", "explain"),
    "volley.observe.history": ("History", "PastQuery", "history"),
    "volley.observe.qualify": ("FrameForecast", "qualify"),
    "volley.observe.report": ("ErrorReport", "OperatorReport", "QueryReport", "StageReport"),
    "volley.session.enable": ("disable", "enable"),
    "volley.shuffle.base": (
        "Block",
        "CheckpointStore",
        "SharedStore",
        "ShuffleSink",
        "ShuffleStore",
        "StoreFactory",
    ),
    "volley.splits.source": ("Estimate", "Split", "SplitReader", "SplitSource"),
    "volley.support.check": ("NodeVerdict",),
    "volley.support.reasons": ("Reason", "Unsupported"),
    "volley.transport.base": (
        "ExplainsAbsence",
        "IngestEndpoint",
        "NoRoom",
        "ReportsProgress",
        "RunningTask",
        "Transport",
        "TransportContext",
        "TransportFactory",
    ),
}


def __getattr__(name: str) -> Any:
    # Lazy, because workers import this package too, and they need neither PySpark nor a JVM.
    import importlib

    if name == "errors":
        return importlib.import_module("volley.errors")
    if name == "enable":
        # An older PySpark, or another package, would fail at some import, which says nothing to whoever called.
        importlib.import_module("volley.spark_versions.registry").check_pyspark()
        importlib.import_module("volley.session.requirements").check_packages()
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'volley' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """For `%load_ext volley`, which IPython calls with its shell."""
    import importlib

    importlib.import_module("volley.notebook").load(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
