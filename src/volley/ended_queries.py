# SPDX-License-Identifier: Apache-2.0
"""Remembers ended queries, so that late calls can be refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from volley.ids import QueryId

# Enough to refuse late messages of any query that may still send some.
_LIMIT = 1024


class EndedQueries:
    """The most recent ended queries, each with how it ended. Not thread-safe: the owner locks it."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._queries: OrderedDict[QueryId, str] = OrderedDict()

    def add(self, query: QueryId, how: str = "") -> None:
        self._queries[query] = how
        while len(self._queries) > self._limit:
            self._queries.popitem(last=False)

    def __contains__(self, query: QueryId) -> bool:
        return query in self._queries

    def __getitem__(self, query: QueryId) -> str:
        return self._queries[query]

    def __iter__(self) -> Iterator[tuple[QueryId, str]]:
        yield from self._queries.items()
