# SPDX-License-Identifier: Apache-2.0
"""The stores of a worker: its own, and the shared ones of the sessions for which it works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

from volley.config import Config
from volley.ended_queries import EndedQueries
from volley.errors import BlockMissing
from volley.ids import QueryId
from volley.shuffle.base import SharedStore, ShuffleStore
from volley.shuffle.config import ShuffleConfig
from volley.shuffle.session_options import Options, apply_options
from volley.shuffle.shared_store import WorkerView

_SESSIONS = 64

Configure = Callable[[ShuffleConfig], ShuffleStore]


class WorkerStores:
    """`own` is what a worker serves to others; `configure` is it with other options. `owner` are the worker's options.

    Attempts write to the store that their session chose. With a shared store `own` stays empty, so draining does not
    wait for it. May be used from any thread.
    """

    def __init__(
        self,
        own: ShuffleStore,
        owner: Config,
        open_shared: Callable[[ShuffleConfig], SharedStore | None],
        configure: Configure | None = None,
    ) -> None:
        self._own = own
        self._configure: Configure = configure or (lambda config: own)
        self._open_shared = open_shared
        # Every task carries the options of its session, and sessions are few.
        self._options = lru_cache(_SESSIONS)(lambda settings: apply_options(owner, settings))
        self._lock = threading.Lock()
        # Held while a store is opened, which may take long. Never acquired on an event loop.
        self._opening = threading.Lock()
        self._shared: dict[ShuffleConfig, SharedStore] = {}
        self._used_by: dict[QueryId, set[ShuffleConfig]] = {}
        self._ended = EndedQueries()
        self._default = ShuffleConfig.of(owner)
        # A store that cannot be opened is an error when the worker starts.
        self._open(self._default)

    def is_open(self, settings: Options) -> bool:
        """Whether `of` returns at once. Raises OptionRefused like `of`."""
        config = self._options(settings)
        return config.store == "memory" or config in self._shared

    def of(self, query: QueryId, settings: Options) -> ShuffleStore:
        """The store for an attempt at this query. Raises OptionRefused if the owner does not allow the settings."""
        config = self._options(settings)
        with self._lock:
            if query in self._ended:
                raise BlockMissing(f"query {query} is over.")
            self._used_by.setdefault(query, set()).add(config)
        return self._open(config)

    def max_message_bytes(self, settings: Options) -> int:
        """The largest message with rows of a session."""
        return self._options(settings).max_message_bytes

    def release(self, query: QueryId) -> None:
        """End a query for this worker. What is in a shared store belongs to the driver."""
        self._own.release(query)
        with self._lock:
            self._ended.add(query)
            mine = self._used_by.pop(query, set())
            leaving = [self._shared[config] for config in mine if config in self._shared]
            needed = set[ShuffleConfig]({self._default}).union(*self._used_by.values())
            idle = [self._shared.pop(config) for config in mine - needed if config in self._shared]
        for store in leaving:
            store.leave(query)
        for store in idle:
            # It may wait for its servers, and this may be an event loop.
            threading.Thread(target=store.close, name="volley-idle-store", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            closing, self._shared = list(self._shared.values()), {}
        for store in closing:
            store.close()

    def _open(self, config: ShuffleConfig) -> ShuffleStore:
        if config.store == "memory":
            return self._configure(config)
        shared = self._shared.get(config)
        if shared is None:
            with self._opening:
                shared = self._shared.get(config) or self._open_shared(config)
                assert shared is not None, "every store but memory is shared"
                self._shared[config] = shared
        return WorkerView(shared)
