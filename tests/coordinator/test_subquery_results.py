# SPDX-License-Identifier: Apache-2.0
"""Subqueries whose results arrive at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from volley.cancellation import CancellationToken
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import EventLog
from volley.ids import QueryId
from volley.plan.expressions import Alias, Attribute, ScalarSubquery
from volley.plan.nodes import OneRow, Project, Range
from volley.plan.types import LONG
from volley.shuffle.base import Block
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import make_stages
from volley.testing.limits import DISTRIBUTED
from volley.transport.local import LocalTransport

SUBQUERIES = 5


class Together(LocalTransport):
    """Hands out no result before all have been asked for."""

    def __init__(self) -> None:
        super().__init__(3, 1, MemoryStore)
        self._all_asked = threading.Barrier(SUBQUERIES)

    def fetch(self, block: Block) -> Iterator[pa.RecordBatch]:
        self._all_asked.wait(20)
        return super().fetch(block)


def test_no_result_of_a_subquery_is_lost_when_they_arrive_together() -> None:
    values = [
        ScalarSubquery(
            100 + number, Range(number, number + 1, 1, (Attribute(200 + number, "id", LONG),)), LONG
        )
        for number in range(SUBQUERIES)
    ]
    columns = tuple(Alias(number, f"c{number}", value) for number, value in enumerate(values))
    options = RunOptions(
        query=QueryId.new(),
        token=CancellationToken(),
        timeout_seconds=60,
        attempts=1,
        events=EventLog(),
        limits=DISTRIBUTED,
    )
    graph = make_stages(Project(columns, OneRow()), 3, DISTRIBUTED)
    with execute(graph, Together(), options) as stream:
        (row,) = [row for batch in stream for row in zip(*map(pa.Array.to_pylist, batch), strict=True)]
    assert row == tuple(range(SUBQUERIES))
