# SPDX-License-Identifier: Apache-2.0
"""Checks that rows have so few groups that Spark aggregates those of each group in their order.

Beyond a limit it sorts the rest of its rows by group, and merges what it has aggregated so far after them. And its
radix sort of a number moves NULLs.
"""

from __future__ import annotations

import threading

import pyarrow as pa

from volley.errors import DataError
from volley.lower.expressions import column_name
from volley.plan.expressions import Attribute, Call


class FewGroups:
    """The groups of the rows of all partitions, by the arguments of a call of `PLACE`."""

    def __init__(self, call: Call) -> None:
        keys = [key for key in call.arguments if isinstance(key, Attribute)]
        self._names = [column_name(key.id) for key in keys]
        self._most = call.option("groups") if keys else None
        self._nulls = call.option("nulls") is not False
        self._found: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()

    def check(self, rows: pa.RecordBatch) -> None:
        """DataError if the rows so far are not within the limits."""
        if not self._nulls and any(rows.column(name).null_count for name in self._names):
            raise DataError("a NULL among the keys of groups, whose rows Spark sorts in another order")
        if not isinstance(self._most, int):
            return
        keys = pa.table(
            [rows.column(name) for name in self._names], [str(at) for at in range(len(self._names))]
        )
        groups = keys.group_by(keys.column_names).aggregate([])
        # Of one batch alone more than the limit are not needed.
        some = groups.slice(0, self._most + 1)
        with self._lock:
            self._found.update(zip(*(column.to_pylist() for column in some.columns), strict=True))
            if len(self._found) > self._most:
                raise DataError(
                    f"more than {self._most} groups, whose rows Spark aggregates in another order"
                )
