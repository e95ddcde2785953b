# SPDX-License-Identifier: Apache-2.0
"""PySpark's docstring examples print the same with Volley."""

from __future__ import annotations

import doctest

import pytest
from pyspark.sql import SparkSession

from volley.testing.docstrings import MODULES, compare, docstrings

EXAMPLES = {test.name: test for test in docstrings(MODULES)}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 700


def test_a_difference_is_found(spark: SparkSession) -> None:
    """The examples run twice, with another setting each time."""
    source = "int(spark.conf.get('spark.volley.enabled') == 'true')\n"
    test = doctest.DocTest([doctest.Example(source, "0\n")], {}, "found", None, 0, None)
    assert compare(spark, test).different


@pytest.mark.parametrize("name", ["column.Column.isin", "window.Window.rowsBetween", "group.GroupedData.max"])
def test_native_examples(spark: SparkSession, name: str) -> None:
    verdict = compare(spark, EXAMPLES[name])
    assert verdict.different == []
    assert verdict.engine == "native", verdict.reasons


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_same_output(spark: SparkSession, name: str) -> None:
    assert compare(spark, EXAMPLES[name]).different == []
