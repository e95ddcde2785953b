# SPDX-License-Identifier: Apache-2.0
"""Every store beside the workers keeps the contract of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.opened_stores import OpenedStores
from volley.ids import QueryId
from volley.shuffle.base import SharedStore, ShuffleStore
from volley.shuffle.object_store import ObjectStore
from volley.shuffle.shared_store import WorkerView
from volley.testing.contracts import SharedStoreContract, ShuffleStoreContract
from volley.testing.services import serve_shuffle, service_store
from volley.testing.shuffle_configs import shuffle_config


class TestFolder(SharedStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], SharedStore]]:
        config = shuffle_config(store=f"file://{tmp_path}")
        opened = OpenedStores(lambda: ObjectStore(config, memory_limit_bytes=2**26))
        yield opened
        opened.close()


class TestFsspec(SharedStoreContract):
    @pytest.fixture
    def make_store(self, request: pytest.FixtureRequest) -> Iterator[Callable[[], SharedStore]]:
        config = shuffle_config(store=f"fsspec+memory://shared-{request.node.name}")
        opened = OpenedStores(lambda: ObjectStore(config, memory_limit_bytes=2**26))
        yield opened
        opened.close()


class TestWorkerView(ShuffleStoreContract):
    """What a worker sees of a shared store keeps the contract of any store."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ShuffleStore]:
        config = shuffle_config(store=f"file://{tmp_path}")
        driver, worker = (ObjectStore(config, memory_limit_bytes=2**26) for _ in range(2))
        for query in ("q", "a", "b"):
            driver.begin(QueryId(query))
        yield WorkerView(worker)
        worker.close()
        driver.close()


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (3, 2)])
class TestService(SharedStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path, servers: int, replicas: int) -> Iterator[Callable[[], SharedStore]]:
        with serve_shuffle(tmp_path, servers) as running:
            addresses = [server.address for server in running]
            opened = OpenedStores(lambda: service_store(addresses, replicas=replicas))
            yield opened
            opened.close()
