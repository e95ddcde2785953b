# SPDX-License-Identifier: Apache-2.0
"""Shared stores that are closed after the test. One that stays open renews its leases, and logs, in other tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from volley.ids import QueryId
from volley.shuffle.base import SharedStore
from volley.shuffle.object_store import ObjectStore
from volley.testing.shuffle_configs import shuffle_config

_opened: list[ObjectStore] = []


def new_store(uri: str, *queries: str, lease_seconds: float = 60.0, compression: str = "auto") -> ObjectStore:
    """A store in which the queries have begun."""
    config = shuffle_config(store=uri, compression=compression)
    store = ObjectStore(config, memory_limit_bytes=2**28, lease_seconds=lease_seconds)
    _opened.append(store)
    for query in queries:
        store.begin(QueryId(query))
    return store


class OpenedStores:
    """Opens the same store again and again, as other processes do, and closes all of them."""

    def __init__(self, new_store: Callable[[], SharedStore]) -> None:
        self._new_store = new_store
        self._stores: list[SharedStore] = []

    def __call__(self) -> SharedStore:
        self._stores.append(self._new_store())
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()


def close_stores() -> None:
    while _opened:
        _opened.pop().close()


def lease_threads() -> set[threading.Thread]:
    """One for each store of this process in which a query has begun and is not over."""
    return {thread for thread in threading.enumerate() if thread.name == "volley-leases"}
