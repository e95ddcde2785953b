# SPDX-License-Identifier: Apache-2.0
"""Every example of Spark's documentation of its functions, natively and on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.testing.builtin_functions import (
    SETTINGS,
    Function,
    builtin_functions,
    create_view,
    queries,
)
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
        "schema_of_variant_agg",
        "vector_avg",
        "vector_sum",
    }
)
# Spark's generated code and its interpreted code differ on a NULL threshold.
_DIFFERS_IN_SPARK = {"levenshtein"}


_GROUPS = [
    "array",
    "avro",
    "bitwise",
    "collection",
    "conditional",
    "conversion",
    "csv",
    "datetime",
    "hash",
    "json",
    "lambda",
    "map",
    "math",
    "misc",
    "predicate",
    "protobuf",
    "st",
    "string",
    "struct",
    "url",
    "variant",
    "vector",
    "xml",
]
# Their values, or many of them, are of types that native plans do not carry.
_NOT_CARRIED = {"st", "avro", "protobuf"}


@dataclass(frozen=True)
class Examples:
    functions: list[Function]
    queries: dict[str, list[str]]
    directory: Path


@pytest.fixture(scope="module")
def examples(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    directory = tmp_path_factory.mktemp("functions")
    with conf(spark_session, SETTINGS):
        functions = [function for function in builtin_functions(spark_session) if _is_scalar(function)]
        return Examples(functions, queries(spark_session, functions, directory), directory)


def _is_scalar(function: Function) -> bool:
    return function.group not in _OTHER_GROUPS and function.name not in _NOT_DETERMINISTIC


def test_no_group_is_left_out(examples: Examples) -> None:
    assert {function.group for function in examples.functions} == {f"{group}_funcs" for group in _GROUPS}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", _GROUPS)
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_examples_of_scalar_functions_give_sparks_rows(
    spark: SparkSession, examples: Examples, group: str, ansi: str
) -> None:
    create_view(spark, examples.directory)
    functions = [function.name for function in examples.functions if function.group == f"{group}_funcs"]
    wrong, left_to_spark = {}, set()
    for key, value in (SETTINGS | {"spark.sql.session.timeZone": "America/New_York"}).items():
        spark.conf.set(key, value)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    for name in functions:
        for query in examples.queries[name]:
            if name in _DIFFERS_IN_SPARK or not _has_rows(spark, query):
                continue
            try:
                if volley.explain(spark.sql(query)).native:
                    assert_same_rows(spark, query)
                else:
                    left_to_spark.add(name)
            except AssertionError as error:
                wrong[query] = str(error)
    assert not wrong
    most = 1.0 if group in _NOT_CARRIED else 0.35
    assert len(left_to_spark) <= most * len(functions), sorted(left_to_spark)


def _has_rows(spark: SparkSession, query: str) -> bool:
    """Whether Spark's generated code has a result, of types that Arrow has."""
    try:
        spark_rows(spark, spark.sql(query))
    except (PySparkException, Py4JJavaError, pa.ArrowException, ValueError, TypeError):
        return False
    return True
