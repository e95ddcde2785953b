# SPDX-License-Identifier: Apache-2.0
"""Files that divide evenly are dealt to the tasks of a scan before they start; others are fed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.adaptive_plans import WORKERS, adapted_run, by, table
from volley.coordinator.feeding import Feeding
from volley.events import EventLog, FeedFinished, FeedStatus
from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.nodes import DataFile, FeedInput, FileScan, Filter, Node, walk
from volley.plan.types import BOOLEAN, LONG
from volley.stages.graph import Stage
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.scans import assign_files, cost_bytes
from volley.testing.limits import DISTRIBUTED

K, V = Attribute(1, "k", LONG), Attribute(2, "v", LONG)
ROWS = 600


def scan(*sizes: int) -> FileScan:
    files = tuple(DataFile(f"{number:03}.parquet", size, 0) for number, size in enumerate(sizes))
    return FileScan("parquet", files, (K, V), (), ())


@given(st.lists(st.integers(0, 100 * LIMITS.open_file_bytes), max_size=40), st.integers(1, 8))
def test_every_file_goes_to_one_task_and_none_has_much_more(sizes: list[int], tasks: int) -> None:
    whole = scan(*sizes)
    shares = assign_files(whole, tasks, LIMITS)
    if shares is None:
        assert tasks > 1
        return
    assert sorted(file.path for share in shares for file in share) == [file.path for file in whole.files]
    busiest = max(cost_bytes(scan(*(file.size_bytes for file in share)), LIMITS) for share in shares)
    assert busiest * tasks <= LIMITS.file_imbalance * cost_bytes(whole, LIMITS)


def test_a_divided_query_assigns_its_files_however_uneven() -> None:
    divided = LIMITS.divide(8)
    assert assign_files(scan(10**9, 1, 1), 3, divided) is not None
    assert assign_files(scan(), 3, divided) == ((), (), ())
    # A task without a file would have nothing to do.
    assert assign_files(scan(1), 2, divided) is None


@pytest.mark.parametrize(
    ("sizes", "even"),
    [
        ([100] * 6, True),
        ([10**9] * 4, False),
        ([10**9], False),
        # What little differs costs little, when so much is spent on opening them.
        ([100, 200, 300], True),
        ([10**9, 10**9, 5 * 10**8, 5 * 10**8], True),
    ],
)
def test_what_is_even(sizes: list[int], even: bool) -> None:
    tasks = 3
    assert (assign_files(scan(*sizes), tasks, LIMITS) is not None) == even


def found(log: EventLog) -> FeedStatus:
    (event,) = [event for event in log.events if isinstance(event, FeedFinished)]
    return event.status


@pytest.mark.parametrize("files", [WORKERS, 2 * WORKERS, WORKERS + 1, 1])
def test_rows_stay_the_same(tmp_path: Path, files: int) -> None:
    positive = Call("GreaterThanOrEqual", (V, Literal(300, LONG)), BOOLEAN)
    plan = by(V, Filter(positive, table(tmp_path, (K, V), ROWS, seed=1, files=files)))
    log = adapted_run(Filter(Call("IsNotNull", (K,), BOOLEAN), plan), DISTRIBUTED)
    if files > 1:
        event = found(log)
        assert (event.found, event.done, event.queued, event.running) == (files, files, 0, 0)
        if files % WORKERS == 0:
            assert event.by_task == (files // WORKERS,) * WORKERS


def plans(equal_workers: bool) -> list[Node]:
    async def made() -> list[Node]:
        stage = Stage(0, scan(*[100] * (2 * WORKERS)), WORKERS, None)
        feeding = Feeding(stage, "s", reads_alike=True, equal_workers=equal_workers, limits=LIMITS)
        assert feeding.may_grow == (not equal_workers)
        return [feeding.plan_of(task) for task in range(WORKERS)]

    return asyncio.run(made())


def test_every_task_has_files_of_its_own() -> None:
    files = [
        file.path
        for plan in plans(True)
        for node in walk(plan)
        if isinstance(node, FileScan)
        for file in node.files
    ]
    assert sorted(files) == [file.path for file in scan(*[100] * (2 * WORKERS)).files]


def test_unequal_workers_are_fed() -> None:
    assert all(isinstance(plan, FeedInput) for plan in plans(False))
