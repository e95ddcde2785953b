# SPDX-License-Identifier: Apache-2.0
"""The queries that are over, so that their late writers can be refused."""

from __future__ import annotations

from collections import OrderedDict

from volley.ids import QueryId

# Enough for any query that may still have some.
_REMEMBERED = 1024


class Released:
    """Remembers the last of them. Whoever has it guards it."""

    def __init__(self) -> None:
        self._queries: OrderedDict[QueryId, None] = OrderedDict()

    def add(self, query: QueryId) -> None:
        self._queries[query] = None
        while len(self._queries) > _REMEMBERED:
            self._queries.popitem(last=False)

    def __contains__(self, query: QueryId) -> bool:
        return query in self._queries
