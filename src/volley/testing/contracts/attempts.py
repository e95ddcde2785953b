# SPDX-License-Identifier: Apache-2.0
"""What the tasks of all suites are made of: attempts, small batches and a plan that returns numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa

from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.expressions import Attribute
from volley.plan.nodes import Node, Range
from volley.plan.types import LONG

NUMBER = Attribute(1, "n", LONG, False)


# Each test of a transport has its own query id: a worker that outlives a test remembers the queries before it.
_QUERY = ContextVar("_QUERY", default="q")


def attempt_id(task: int = 0, attempt: int = 0, stage: int = 0, query: str | None = None) -> AttemptId:
    return AttemptId(TaskId(StageId(QueryId(query or _QUERY.get()), stage), task), attempt)


@contextmanager
def in_a_query() -> Iterator[None]:
    """Use a new query id for `attempt_id` within this block."""
    before = _QUERY.set(QueryId.new().value)
    try:
        yield
    finally:
        _QUERY.reset(before)


def query_id() -> QueryId:
    """The query id of this test."""
    return QueryId(_QUERY.get())


def batch_of(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(values, pa.int64())})


def numbers(count: int) -> Node:
    """A plan that returns the numbers below `count`."""
    return Range(0, count, 1, (NUMBER,))
