# SPDX-License-Identifier: Apache-2.0
"""Figures of Spark's operators: those of native ones, where it is certain which they are."""

from __future__ import annotations

from typing import Any

from volley.observe.operator_metrics import with_figures
from volley.observe.stage_data import Stage


def plan(*nodes: tuple[int, str], spark: str = "") -> list[dict[str, Any]]:
    return [{"depth": depth, "name": name, "native": name != spark} for depth, name in nodes]


def stage(number: int, *operators: tuple[str, int]) -> Stage:
    made = Stage(str(number), 0, number, 0.0, 1, [], [])
    made.operators = [
        {"name": name, "output_rows": rows, "elapsed_compute": 500_000_000} for name, rows in operators
    ]
    return made


def rows(nodes: list[dict[str, Any]], *stages: Stage) -> list[int | None]:
    return [node["figures"] and node["figures"]["rows"] for node in with_figures(nodes, stages)]


def test_a_chain_over_two_stages() -> None:
    nodes = plan((0, "Aggregate"), (1, "Exchange"), (2, "Aggregate"), (3, "Filter"), (4, "FileScan"))
    stages = (
        stage(0, ("AggregateExec", 30), ("FilterExec", 80), ("DataSourceExec", 100)),
        stage(1, ("ProjectionExec", 10), ("AggregateExec", 10)),
    )
    assert rows(nodes, *stages) == [10, None, 30, 80, 100]
    figures = with_figures(nodes, stages)[0]["figures"]
    assert figures == {"stage": "1", "rows": 10, "seconds": 0.5, "skew": 1.0}


def test_what_is_not_certain_has_none() -> None:
    joined = plan((0, "Join"), (1, "Filter"), (2, "FileScan"), (1, "FileScan"))
    one = stage(0, ("HashJoinExec", 5), ("FilterExec", 2), ("DataSourceExec", 7), ("DataSourceExec", 9))
    # Which scan is which?
    assert rows(joined, one) == [5, 2, None, None]
    # The filter became a part of the scan, or there is one more than Spark has.
    assert rows(plan((0, "Filter"), (1, "FileScan")), stage(0, ("DataSourceExec", 7))) == [None, 7]
    two = stage(0, ("FilterExec", 1), ("FilterExec", 2), ("DataSourceExec", 7))
    assert rows(plan((0, "Filter"), (1, "FileScan")), two) == [None, 7]
    # Spark ran it.
    by_spark = plan((0, "Filter"), (1, "FileScan"), spark="FileScan")
    assert rows(by_spark, stage(0, ("FilterExec", 1), ("DataSourceExec", 7))) == [1, None]
    assert rows([], stage(0)) == []
