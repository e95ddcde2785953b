# SPDX-License-Identifier: Apache-2.0
"""Every example of Spark's documentation of its functions, natively and on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.testing.builtin_functions import SETTINGS, Function, builtin_functions, queries
from volley.testing.rows import assert_same_rows, spark_rows
from volley.testing.session import conf

pytestmark = [pytest.mark.embedded, pytest.mark.slow]

# Nothing of these is a function of one row's columns.
_OTHER_GROUPS = {"agg_funcs", "window_funcs", "generator_funcs", "sketch_funcs"}
# They depend on chance, the clock or how Spark divides the rows; or they make rows, or aggregate them.
_NOT_DETERMINISTIC = frozenset(
    {
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "monotonically_increasing_id",
        "spark_partition_id",
        "java_method",
        "reflect",
        "try_reflect",
        "current_timestamp",
        "now",
        "localtimestamp",
        "current_time",
        "localtime",
        "aes_encrypt",
        "window",
        "session_window",
        "window_time",
        "json_tuple",
        "schema_of_variant_agg",
        "vector_avg",
        "vector_sum",
    }
)
# Spark's generated code and its interpreted code differ on a NULL threshold.
_DIFFERS_IN_SPARK = {"levenshtein"}


def _scalar(function: Function) -> bool:
    return function.group not in _OTHER_GROUPS and function.name not in _NOT_DETERMINISTIC


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("zone", ["America/New_York"])
def test_examples_of_scalar_functions_give_sparks_rows(
    spark: SparkSession, tmp_path: Path, ansi: str, zone: str
) -> None:
    with conf(spark, SETTINGS | {"spark.sql.ansi.enabled": ansi, "spark.sql.session.timeZone": zone}):
        functions = [function for function in builtin_functions(spark) if _scalar(function)]
        wrong, left_to_spark, compared = {}, set(), 0
        for name, examples in queries(spark, functions, tmp_path).items():
            for query in examples:
                if name in _DIFFERS_IN_SPARK or not _has_rows(spark, query):
                    continue
                try:
                    if volley.explain(spark.sql(query)).native:
                        assert_same_rows(spark, query)
                        compared += 1
                    else:
                        left_to_spark.add(name)
                except AssertionError as error:
                    wrong[query] = str(error)
    assert not wrong
    assert compared > 600
    assert len(left_to_spark) / len(functions) < 0.1, sorted(left_to_spark)


def _has_rows(spark: SparkSession, query: str) -> bool:
    """Whether Spark has a result, of types that Arrow has."""
    try:
        spark_rows(spark, query)
    except (PySparkException, Py4JJavaError, ValueError, TypeError):
        return False
    return True
