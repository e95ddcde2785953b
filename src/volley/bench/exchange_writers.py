# SPDX-License-Identifier: Apache-2.0
"""Creates the writer for each way of exchange that is measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from volley.bench.writers import QUERY, ExchangeCase, LocalWriter, MapTask, RemoteWriter, Writer, Written
from volley.cluster import LocalCluster
from volley.config import Config
from volley.ids import QueryId
from volley.shuffle.base import SharedStore, ShuffleStore
from volley.shuffle.config import RetryPolicy, ShuffleConfig
from volley.shuffle.object_store import ObjectStore
from volley.shuffle.service.store import ServiceStore

_STORE_MEMORY_BYTES = 256 * 2**20
_CONFIG = replace(ShuffleConfig.of(Config.read({})), retry=RetryPolicy(0, 0, 60.0))
_SERVERS = 2
HERE = "file://"
"""The medium of a local folder."""


@contextmanager
def writers(rows: int, partitions: int, cores: int) -> Iterator[Callable[[ExchangeCase], Writer]]:
    """Yield a function that returns the writer for a way: in this process, in another, or to a shared store."""
    there = RemoteWriter(rows, partitions, cores)
    here = MapTask(rows, partitions, cores)
    others: dict[str, Writer] = {"in-process": LocalWriter(here), "folder": _Folder(here)}
    with ExitStack() as resources:
        resources.callback(there.stop)

        def writer(way: ExchangeCase) -> Writer:
            if way.distance == "service" and way.distance not in others:
                cluster = resources.enter_context(LocalCluster(0, cores=1, memory="2g", services=_SERVERS))
                others[way.distance] = _Service(here, cluster)
            return others.get(way.distance, there)

        yield writer


class _Beside(ABC):
    """A writer in this process to a shared store, which another object in this process reads."""

    def __init__(self, task: MapTask) -> None:
        self._task = task
        self._store: SharedStore | None = None
        self._query = QUERY

    @abstractmethod
    def make_store(self, way: ExchangeCase, directory: Path) -> SharedStore:
        """Create a new store for one way."""

    def write(self, way: ExchangeCase, directory: Path) -> Written:
        # A new query id each time: a store refuses queries that are over.
        self._query = QueryId.new()
        self._store = self.make_store(way, directory)
        self._store.begin(self._query)
        return self._task.run(self._store, self._query)

    def reader(self, way: ExchangeCase, directory: Path) -> ShuffleStore:
        return self.make_store(way, directory)

    def free(self) -> None:
        if self._store is not None:
            self._store.close()


class _Folder(_Beside):
    """Local files in the layout of an object store, or the store that the way names."""

    def make_store(self, way: ExchangeCase, directory: Path) -> SharedStore:
        uri = f"file://{directory}" if way.medium == HERE else way.medium
        return ObjectStore(
            replace(_CONFIG, store=uri, compression=way.compression), memory_limit_bytes=_STORE_MEMORY_BYTES
        )


class _Service(_Beside):
    """Shuffle servers in separate processes, which acknowledge a commit once it is on disk."""

    def __init__(self, task: MapTask, cluster: LocalCluster) -> None:
        super().__init__(task)
        self._cluster = cluster

    def make_store(self, way: ExchangeCase, directory: Path) -> SharedStore:
        config = replace(
            _CONFIG,
            servers=tuple(server.address for server in self._cluster.servers),
            replicas=int(way.medium.partition(" ")[0]),
            compression=way.compression,
        )
        return ServiceStore(config, self._cluster.security, memory_limit_bytes=_STORE_MEMORY_BYTES)
