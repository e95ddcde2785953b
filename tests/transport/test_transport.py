# SPDX-License-Identifier: Apache-2.0
"""The in-process transport keeps the contract, with every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volley.shuffle.memory import MemoryStore
from volley.shuffle.object_store import ObjectStore
from volley.testing.contracts import TransportContract
from volley.testing.holders import serve_store
from volley.testing.shuffle_configs import shuffle_config
from volley.transport.base import Transport
from volley.transport.local import LocalTransport


class TestLocalTransport(TransportContract):
    @pytest.fixture
    def make_transport(self) -> Callable[[int], Transport]:
        return lambda workers: LocalTransport(workers, 2, MemoryStore)


class TestLocalTransportWithASharedStore(TransportContract):
    @pytest.fixture
    def make_transport(self, tmp_path: Path) -> Iterator[Callable[[int], Transport]]:
        store = ObjectStore(shuffle_config(store=tmp_path.as_uri()), memory_limit_bytes=2**26)
        yield lambda workers: LocalTransport(workers, 2, MemoryStore, shared=store)
        store.close()


class TestLocalTransportThatServes(TransportContract):
    """As it does when Spark's tasks read its rows."""

    @pytest.fixture
    def make_transport(self, tmp_path: Path) -> Iterator[Callable[[int], Transport]]:
        with serve_store([tmp_path]) as store:
            yield lambda workers: LocalTransport(workers, 2, MemoryStore, serving=store)
