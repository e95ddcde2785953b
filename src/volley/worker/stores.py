# SPDX-License-Identifier: Apache-2.0
"""What a worker needs from its stores."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from volley.ids import QueryId
from volley.shuffle.base import ShuffleStore

Settings = tuple[tuple[str, str], ...]
"""`TaskSpec.settings`."""

_ANY_SIZE_BYTES = 2**63 - 1


@runtime_checkable
class Stores(Protocol):
    """The stores of one worker. May be used from any thread."""

    def is_open(self, settings: Settings) -> bool:
        """Whether `of` returns at once. Otherwise it opens a store, and must not be called on an event loop."""

    def of(self, query: QueryId, settings: Settings) -> ShuffleStore:
        """The store for an attempt at this query. Raises QueryError if the settings are not allowed here."""

    def max_message_bytes(self, settings: Settings) -> int:
        """The largest message with rows of a session."""

    def release(self, query: QueryId) -> None:
        """Remove what this worker holds of a query. Its later attempts are refused."""


class OneStore:
    """The same store for all sessions."""

    def __init__(self, store: ShuffleStore) -> None:
        self._store = store

    def is_open(self, settings: Settings) -> bool:
        return True

    def of(self, query: QueryId, settings: Settings) -> ShuffleStore:
        return self._store

    def max_message_bytes(self, settings: Settings) -> int:
        return _ANY_SIZE_BYTES

    def release(self, query: QueryId) -> None:
        self._store.release(query)
