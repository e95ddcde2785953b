# SPDX-License-Identifier: Apache-2.0
"""The shuffle service keeps the contract of a store, and its own promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import ShuffleStoreContract
from volley.testing.services import serve_shuffle, service_store


@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (3, 1), (3, 2)])
class TestContract(ShuffleStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, servers: int, replicas: int) -> Iterator[ServiceStore]:
        with serve_shuffle(tmp_path, servers) as running:
            store = service_store([server.address for server in running], "q", "a", "b", replicas=replicas)
            yield store
            store.close()
