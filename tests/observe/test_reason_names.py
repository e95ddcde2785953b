# SPDX-License-Identifier: Apache-2.0
"""Reasons call things by the names that users write."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from volley import explain
from volley.support.function_names import FUNCTION_NAMES
from volley.support.operators import OPERATORS
from volley.support.reasons import Reason
from volley.support.sql_names import SQL_NAMES, sql_name
from volley.testing.session import conf


def test_names_are_those_of_sparks_registry(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    text = registry.listFunction().mkString(" ")
    registered = {name.rpartition(".")[2].strip("`") for name in text.split()}
    assert not {name for name in FUNCTION_NAMES.values() if name not in registered}
    # Where both name a class, the hand-written name is shown; it need not be a function's.
    assert sql_name("EqualTo") == SQL_NAMES["EqualTo"]
    assert not FUNCTION_NAMES.keys() & OPERATORS.keys()


def test_a_lambda_is_reported_by_the_function_that_calls_it(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1, 2], "x")], "a array<int>, s string")
    with conf(spark, {"spark.volley.jvmExpressions": "off"}):
        explanation = explain(frame.select(F.zip_with("a", "a", lambda item, _: item + F.length("s"))))
    assert [str(reason) for reason in explanation.reasons][:1] == [
        "[EXPRESSION_NOT_SUPPORTED] zip_with (ZipWith): it calls a lambda"
    ]


def test_all_causes_are_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("x",)], "s string")
    both = frame.select(
        F.regexp_extract_all("s", F.lit("a"), 1),
        F.from_json("s", "a int"),
        F.expr("make_interval(1)"),
    )
    with conf(spark, {"spark.volley.jvmExpressions": "off"}):
        reasons = explain(both).reasons
    assert {reason.reason for reason in reasons} <= {Reason.EXPRESSION, Reason.DATA_TYPE, Reason.MIXED}
    text = "\n".join(map(str, reasons))
    assert "regexp_extract_all (RegExpExtractAll)" in text
    assert "from_json (JsonToStructs)" in text
