# SPDX-License-Identifier: Apache-2.0
"""Every case of the benchmark of Python functions runs natively, and its rows are compared."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from volley.bench.udf import CASES, Sizes, UdfRun, measure, udf_table


@pytest.mark.slow
def test_it_measures_volley_and_spark(spark: SparkSession) -> None:
    told: list[str] = []
    sizes = Sizes(rows=1000, groups=10)
    ours, theirs = measure(spark, sizes, ["scalar Arrow UDF"], ("volley", "spark"), 1, told.append)
    assert (ours.engine, ours.native, ours.rows) == ("volley", True, 1)
    assert (theirs.engine, theirs.native, theirs.rows) == ("spark", None, 1)
    assert len(told) == 2


@pytest.mark.slow
def test_every_case_is_native(tpch: SparkSession) -> None:
    found = measure(tpch, Sizes(1000, 10), list(CASES), ("volley", "spark"), 1, lambda words: None)
    assert [run.case for run in found if run.native] == list(CASES)


def test_the_table_says_how_many_times_faster() -> None:
    runs = [UdfRun("a", "volley", 0.5, 1, True), UdfRun("a", "spark", 2.0, 1, None)]
    cells = [next(iter(column.cells)) for column in udf_table(Sizes(10, 2), runs).columns]
    assert cells == ["a", "0.50", "2.00", "4.00", "yes"]
