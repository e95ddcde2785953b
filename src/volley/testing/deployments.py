# SPDX-License-Identifier: Apache-2.0
"""Every combination of transport and shuffle store on this machine, so that one suite can run on any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from volley.cluster import LocalCluster
from volley.shuffle.factory import close_stores
from volley.testing.services import serve_shuffle
from volley.transport.flight import close_fleets

TRANSPORTS = ("local", "flight", "spark")
STORES = ("memory", "service", "object")

_WORKERS = 3
_SERVERS = 2


@dataclass(frozen=True)
class Deployment:
    """`settings` make a session run on it. `is_empty` tells whether its queries left no exchanged data behind."""

    settings: dict[str, str]
    is_empty: Callable[[], bool]


@contextmanager
def deploy(transport: str, store: str, directory: Path) -> Iterator[Deployment]:
    """Run workers and shuffle servers for the duration of a block. Store `object` keeps its data in `directory`.

    Transport `local` with store `memory` is the default of a session. With other stores there are several embedded
    workers, since a single one exchanges nothing.
    """
    if transport not in TRANSPORTS or store not in STORES:
        raise ValueError(f"there is no deployment {transport} with {store}")
    with ExitStack() as running:
        settings = {"spark.volley.transport": transport} if transport != "local" else {}
        checks: list[Callable[[], bool]] = []
        if store == "service":
            servers = running.enter_context(serve_shuffle(directory, _SERVERS))
            settings["spark.volley.shuffle.store"] = "service"
            settings["spark.volley.shuffle.service"] = ",".join(server.address for server in servers)
            checks += [lambda: all(server.server_state.empty for server in servers)]
        elif store == "object":
            settings["spark.volley.shuffle.store"] = directory.as_uri()
            checks += [lambda: not any(path.is_file() for path in directory.rglob("*"))]
        if transport == "flight":
            cluster = running.enter_context(_cluster(settings))
            settings |= cluster.settings
            checks += [lambda: all(health and not health.held_bytes for health in cluster.health())]
        elif transport == "local" and store != "memory":
            settings["spark.volley.local.workers"] = str(_WORKERS)
        # Close connections before the servers end.
        running.callback(close_stores)
        running.callback(close_fleets)
        yield Deployment(settings, lambda: all(check() for check in checks))


def _cluster(settings: dict[str, str]) -> LocalCluster:
    shuffle = {key: value for key, value in settings.items() if key.startswith("spark.volley.shuffle.")}
    return LocalCluster(_WORKERS, cores=1, memory="512m", settings=shuffle)
