# SPDX-License-Identifier: Apache-2.0
"""A query that reads little is one task; what counts is what it reads of files, not how large they are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from helpers.recovery import WORKERS, Losses, numbers, run
from volley import last_query
from volley.events import TaskStarted
from volley.plan.expressions import Attribute, Literal, ScalarSubquery
from volley.plan.nodes import (
    DataFile,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Node,
    Project,
    Range,
    SourceScan,
    Union,
)
from volley.plan.types import BOOLEAN, LONG, STRING
from volley.splits.measure import fits_one_task, measure
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits
from volley.testing.rows import assert_same_rows

OPEN_BYTES = DEFAULT_LIMITS.open_file_bytes

NARROW, WIDE, ABSENT = (
    Attribute(1, "Narrow", LONG),
    Attribute(2, "wide", STRING),
    Attribute(3, "folder", LONG),
)
ROWS = 4000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> DataFile:
    """32 KB of numbers, and a megabyte of text that does not compress."""
    path = tmp_path_factory.mktemp("little") / "wide.parquet"
    texts = [f"{number * 2654435761 % 2**64:064x}" * 4 for number in range(ROWS)]
    table = pa.table({"narrow": pa.array(range(ROWS), pa.int64()), "wide": texts})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    return DataFile(str(path), path.stat().st_size, 0)


def scan(file: DataFile, *columns: Attribute, files: int = 1) -> FileScan:
    folders = tuple(column for column in columns if column is ABSENT)
    return FileScan("parquet", (file,) * files, columns, folders, ())


def limited(size_bytes: int) -> PlannerLimits:
    return PlannerLimits(single_task_bytes=size_bytes)


def read_bytes(plan: Node) -> int:
    """What a plan comes to: the least limit under which it is little."""
    low, high = 0, 2**30
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_one_task(measure(plan), limited(middle)) else (middle, high)
    return high


def test_only_the_columns_that_are_read_count(file: DataFile) -> None:
    numbers = read_bytes(scan(file, NARROW)) - OPEN_BYTES
    assert 8 * ROWS <= numbers < 10 * ROWS
    assert file.size_bytes - 2000 < read_bytes(scan(file, NARROW, WIDE)) - OPEN_BYTES <= file.size_bytes
    assert read_bytes(scan(file)) == OPEN_BYTES
    assert read_bytes(scan(file, NARROW, ABSENT)) - OPEN_BYTES == numbers


def test_every_file_and_every_scan_counts_and_those_of_subqueries(file: DataFile) -> None:
    one = read_bytes(scan(file, NARROW))
    assert abs(read_bytes(scan(file, NARROW, files=3)) - 3 * one) < 3
    assert abs(read_bytes(Union((NARROW,), (scan(file, NARROW), scan(file, NARROW)))) - 2 * one) < 3
    asking = Filter(ScalarSubquery(9, Project((), scan(file, NARROW)), BOOLEAN), scan(file, NARROW))
    assert abs(read_bytes(asking) - 2 * one) < 3


def test_all_columns_count_if_the_footer_cannot_be_read() -> None:
    unseen = DataFile("/nowhere/a.parquet", 1000, 0)
    assert read_bytes(scan(unseen, NARROW)) == OPEN_BYTES + 1000


def test_ranges_count_eight_bytes_per_number() -> None:
    assert read_bytes(Range(0, 1000, 10, (NARROW,))) == 800


@pytest.mark.parametrize(
    "plan",
    [
        SourceScan("source", "reader", ("narrow",), (NARROW,)),
        Join(JoinKind.INNER, (), (), None, None, Range(0, 2, 1, (NARROW,)), Range(0, 2, 1, (ABSENT,))),
    ],
    ids=["a source of unknown size", "a product"],
)
def test_plans_that_never_fit_one_task(plan: Node) -> None:
    assert not fits_one_task(plan, limited(2**60))


def test_no_plan_fits_one_task_with_a_limit_of_zero(file: DataFile) -> None:
    assert not fits_one_task(scan(file, NARROW), limited(0))
    assert not fits_one_task(Project((Literal(1, LONG),), Range(0, 0, 1, ())), limited(0))


def test_a_small_query_is_one_task_and_explain_says_so(tpch: SparkSession) -> None:
    text = "select o_orderpriority, count(*) n from orders join customer on o_custkey = c_custkey group by 1"
    tpch.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(tpch, text)
    report = last_query(tpch)
    assert report is not None
    (stage,) = report.stages
    assert stage.tasks == 1
    assert "one task does all of it" in str(report)
    tpch.conf.set("spark.volley.singleTaskSize", "0")
    assert_same_rows(tpch, text)
    spread = last_query(tpch)
    assert spread is not None
    assert "one task does all of it" not in str(spread)
    assert [stage.planned_tasks for stage in (*report.stages, spread.stages[-1])] == [1, 3]


def test_queries_begin_with_different_workers() -> None:
    """Or one worker would have all the single tasks."""
    logs = [run(numbers(3), Losses(stage=9, count=0))[1] for _ in range(40)]
    started = {event.worker for log in logs for event in log.events if isinstance(event, TaskStarted)}
    assert len(started) == WORKERS
