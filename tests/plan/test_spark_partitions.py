# SPDX-License-Identifier: Apache-2.0
"""Which rows are in which of Spark's partitions, without Spark."""

from __future__ import annotations

import pytest

from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, Exchange, FileScan, Limit, Node, Partitioning, Project, Range, Union
from volley.plan.spark_partitions import (
    Concatenated,
    Files,
    Grouped,
    Layout,
    Slices,
    Unclear,
    nth_partition,
    partition_count,
    with_partitions,
)
from volley.plan.types import LONG

ID = Attribute(1, "id", LONG, False)
TEN = Range(0, 30, 3, (ID,))
SCAN = FileScan("parquet", (DataFile("/a", 100, 0), DataFile("/b", 10, 0)), (ID,), (), ())
FILES = Files(((("file:/a", 0, 60),), (("file:/a", 60, 40), ("file:/b", 0, 10))))


def partitions(plan: Node, layout: Layout) -> list[Node] | None:
    known = with_partitions(plan, layout)
    return None if known is None else [nth_partition(known, place) for place in range(partition_count(known))]


def numbers(plan: Node) -> list[int]:
    while not isinstance(plan, Range):
        (plan,) = plan.children
    return list(range(plan.start, plan.end, plan.step))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Slices(3), [[0, 3, 6], [9, 12, 15], [18, 21, 24, 27]]),
        (Slices(1), [list(range(0, 30, 3))]),
        (Grouped(2, Slices(3)), [[0, 3, 6], list(range(9, 30, 3))]),
        (Grouped(5, Slices(2)), [[0, 3, 6, 9, 12], [15, 18, 21, 24, 27]]),
    ],
)
def test_slices_of_a_range(layout: Layout, expected: list[list[int]]) -> None:
    found = partitions(Project((ID,), TEN), layout)
    assert found is not None
    assert [numbers(plan) for plan in found] == expected


def test_partitions_of_a_union_follow_one_another() -> None:
    found = partitions(Union((ID,), (TEN, TEN)), Concatenated((Slices(1), Slices(2))))
    assert found is not None
    assert [len(numbers(plan)) for plan in found] == [10, 5, 5]


def test_parts_of_files() -> None:
    found = partitions(SCAN, FILES)
    assert found is not None
    parts = [
        [(part.file.path, part.start, part.end) for part in plan.partitions[0]]
        for plan in found
        if isinstance(plan, FileScan)
    ]
    assert parts == [[("/a", 0, 60)], [("/a", 60, 100), ("/b", 0, 10)]]
    (whole,) = partitions(SCAN, Grouped(1, FILES)) or []
    assert isinstance(whole, FileScan)
    assert [part.end for part in whole.partitions[0]] == [60, 100, 10]


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        (TEN, Unclear("SortMergeJoinExec")),
        (Exchange(Partitioning.HASH, 2, (ID,), (), TEN), Slices(2)),
        (Limit(3, 0, whole=True, child=TEN), Slices(2)),
        (Limit(3, 0, whole=False, child=TEN), Grouped(1, Slices(2))),
        (Union((ID,), (TEN, TEN)), Grouped(1, Concatenated((Slices(1), Slices(2))))),
        (SCAN, Files(FILES.partitions[:1])),
        (SCAN, Files(((("file:/c", 0, 110),),))),
        (FileScan("csv", SCAN.files, (ID,), (), ()), FILES),
    ],
)
def test_what_is_not_certain(plan: Node, layout: Layout) -> None:
    assert with_partitions(plan, layout) is None
