# SPDX-License-Identifier: Apache-2.0
"""Which options have an effect with which transport and store. `volley.enable` warns of those that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from volley.config import Config
from volley.options import PREFIX


@dataclass(frozen=True)
class _Scope:
    """`holds` tells whether an option has an effect; `where` says in words where it has."""

    holds: Callable[[Config], bool]
    where: str


_LOCAL = _Scope(lambda config: config.transport == "local", "spark.volley.transport=local")
_SPARK = _Scope(lambda config: config.transport == "spark", "spark.volley.transport=spark")
_CONNECTED = _Scope(
    lambda config: config.transport not in ("local", "spark"), "spark.volley.transport=flight"
)
_SERVICE = _Scope(lambda config: config.shuffle_store == "service", "spark.volley.shuffle.store=service")
_KEPT = _Scope(lambda config: config.shuffle_store != "memory", "stores outside of the workers")
_SENT = _Scope(
    lambda config: config.transport != "local" or config.shuffle_store != "memory",
    "workers in other processes and stores outside of this one (here only to native rows that Spark's tasks read)",
)
_SPILLED = _Scope(
    lambda config: config.transport != "local" and config.shuffle_store == "memory",
    "workers in other processes that keep exchanged data themselves (here only to native rows that Spark's tasks read)",
)
_MEMORY = _Scope(
    lambda config: config.transport == "spark" or (config.transport == "local" and config.local_workers > 1),
    "Spark's executors, to several local workers, and to daemons that are started with it (`volley worker --set`)",
)
_PORT = _Scope(lambda config: False, "daemons that are started with it (`volley worker --set`)")

_SCOPES = {
    "workers": _CONNECTED,
    "worker.timeoutSeconds": _CONNECTED,
    "local.workers": _LOCAL,
    "local.cores": _LOCAL,
    "memory": _LOCAL,
    "jvmExpressions": _LOCAL,
    "executor.memory": _SPARK,
    "shuffle.service": _SERVICE,
    "shuffle.replicas": _SERVICE,
    "shuffle.checkpoint": _KEPT,
    "shuffle.checkpointSeconds": _KEPT,
    "shuffle.port": _PORT,
    "shuffle.memoryFraction": _MEMORY,
    "shuffle.spillThreshold": _SPILLED,
    "shuffle.maxMessageSize": _SENT,
    "shuffle.compression": _SENT,
    "shuffle.retryAttempts": _SENT,
    "shuffle.retryDelayMs": _SENT,
    "shuffle.timeoutSeconds": _SENT,
}


def find_without_effect(config: Config, keys: Iterable[str]) -> list[str]:
    """A sentence for each of these options that does nothing for the queries of such a session."""
    names = sorted(key.removeprefix(PREFIX) for key in keys)
    return [
        f"{PREFIX}{name} has no effect on this session. It applies to {_SCOPES[name].where}."
        for name in names
        if name in _SCOPES and not _SCOPES[name].holds(config)
    ]
