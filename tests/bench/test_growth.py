# SPDX-License-Identifier: Apache-2.0
"""Growth: each measurement gives a point per size and engine, and the table shows what grew."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from volley.bench.growth import Point, grow_columns, grow_concurrency, grow_files, growth_table
from volley.cli.bench import bench


def nothing(text: str) -> None:
    pass


@pytest.mark.slow
def test_files_columns_and_threads(tpch: SparkSession, tmp_path: Path) -> None:
    points = [
        *grow_files(tpch, [2, 4], ["volley", "spark"], 1, tmp_path, nothing),
        *grow_columns(tpch, [3], ["volley"], 1, tmp_path, nothing),
        *grow_concurrency(tpch, [2], ["volley"], nothing),
    ]
    assert [(point.kind, point.size, point.engine) for point in points] == [
        ("files", 2, "volley"),
        ("files", 2, "spark"),
        ("files", 4, "volley"),
        ("files", 4, "spark"),
        ("columns", 3, "volley"),
        ("concurrent", 2, "volley"),
    ]
    assert all(point.native for point in points if point.engine == "volley")
    assert all(point.seconds > 0 for point in points)
    threads = points[-1]
    assert threads.queries == 8
    assert threads.p95_seconds is not None
    assert threads.p95_seconds <= threads.seconds
    assert growth_table(points).row_count == 6


def test_the_table_shows_growth_from_size_to_size() -> None:
    points = [
        Point("scale", 0.1, "volley", 1.0, query="q01"),
        Point("scale", 0.1, "volley", 2.0, peak_bytes=2**20),
        Point("scale", 1.0, "volley", 18.0, peak_bytes=2**21),
    ]
    table = growth_table(points)
    assert table.row_count == 2
    assert list(table.columns[4].cells) == ["", "9.00 (10)"]


@pytest.mark.parametrize("sizes", ["0", "-1", "many"])
def test_sizes_that_make_no_sense_are_refused(sizes: str) -> None:
    ran = CliRunner().invoke(bench, ["growth", "--files", sizes])
    assert ran.exit_code == 2
    assert "expected numbers above 0" in ran.output
