# SPDX-License-Identifier: Apache-2.0
"""Queries with the same plans over other rows, at the same time on the same workers: each gets its own rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from helpers.running_queries import NUMBER, distinct, hashed, numbers, single
from volley.cluster import LocalCluster
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.plan.expressions import SortKey
from volley.plan.nodes import Sort
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport

THREADS = 3
QUERIES = 8


def test_queries_that_share_plans_keep_their_rows_apart() -> None:
    """All stages but the first are the same for every number of rows, so their frames are used again."""
    with LocalCluster(2, cores=1, memory="256m", arguments=("--tasks", "2")) as cluster:
        fleet = Fleet(cluster.addresses, cluster.security, 20.0)
        try:
            fleet.wait()

            def run(count: int) -> list[int]:
                plan = Sort((SortKey(NUMBER, True, True),), True, single(distinct(hashed(numbers(count)))))
                options = RunOptions(timeout_seconds=60, attempts=1, limits=UNMERGED)
                with execute(cut(plan, 2, UNMERGED), FlightTransport(fleet), options) as stream:
                    return [value for batch in stream for value in batch.column(0).to_pylist()]

            counts = [(number + 1) * 37 for number in range(QUERIES)] * THREADS
            with ThreadPoolExecutor(THREADS) as threads:
                for count, rows in zip(counts, threads.map(run, counts), strict=True):
                    assert rows == list(range(count))
        finally:
            fleet.close()
