# SPDX-License-Identifier: Apache-2.0
"""Every action over columns whose values have parts: repeated names, NULLs at every level, nothing inside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import volley
from helpers.sampling import every
from helpers.shown import shown
from volley.testing.session import conf

COLUMNS = {
    "repeated names": "named_struct('a', id, 'a', text) s, array(named_struct('a', id, 'b', 1, 'a', t)) l,"
    " map(text, named_struct('a', id, 'a', text)) m",
    "repeated names of arguments": "arrays_zip(numbers, numbers) z",
    "repeated names below others": "struct(array(map(1, named_struct('x', t, 'x', named_struct('y', id, 'y', t))))) s",
    "NULLs": "if(id = 1, null, named_struct('a', if(id = 2, null, id), 'b', cast(null as string))) s,"
    " array(null, named_struct('a', nullif(id, 1))) l, map('k', cast(null as int)) m,"
    " cast(null as array<struct<a: int>>) n",
    "empty": "cast(array() as array<struct<a: int, b: array<int>>>) e, cast(map() as map<int, string>) m,"
    " array(cast(array() as array<int>), null) a",
    "all kinds of values": "struct(text, t, cast(t as date) d, cast(id as decimal(20, 4)) n, id / 3 f, id = 1 q,"
    " encode(text, 'utf-8') b, cast(t as timestamp_ntz) z, interval '1 02:03:04.5' day to second i) s",
}


def to_pandas(frame: DataFrame, structs: str, *, arrow: bool = True) -> Any:
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": str(arrow).lower(),
        "spark.sql.execution.pandas.structHandlingMode": structs,
    }
    with conf(frame.sparkSession, settings):
        return cast("Any", frame.toPandas()).values.tolist()


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda frame: frame.collect(),
    "toArrow": lambda frame: (frame.toArrow().schema, frame.toArrow().to_pylist()),
    "toPandas": lambda frame: to_pandas(frame, "legacy"),
    "toPandas with structs as rows": lambda frame: to_pandas(frame, "row"),
    "toPandas with structs as dicts": lambda frame: to_pandas(frame, "dict"),
    "toPandas without Arrow": lambda frame: to_pandas(frame, "dict", arrow=False),
    "take": lambda frame: frame.take(2),
    "tail": lambda frame: frame.tail(2),
    "toLocalIterator": lambda frame: list(frame.toLocalIterator()),
    "show": lambda frame: shown(frame, 5, truncate=False),
    "show vertical": lambda frame: shown(frame, 5, truncate=7, vertical=True),
}
ROWS = """
    (select id, concat('é', id) text, timestamp'2024-11-03 05:30:00Z' + make_dt_interval(0, id) t,
            if(id = 3, null, array(id, null, 7)) numbers
     from range(4) order by id)
"""


def answer(action: Callable[[DataFrame], Any], frame: DataFrame) -> Any:
    """What a program sees: the types of values, and of errors, count too."""
    try:
        return repr(action(frame))
    except PySparkException as error:
        return error.getCondition()
    except ValueError as error:
        # PySpark cannot make a pandas column of some values.
        return str(error)


@pytest.mark.parametrize(("columns", "action"), every(3, product(COLUMNS, ACTIONS)))
def test_an_action_answers_as_spark_does(spark: SparkSession, columns: str, action: str) -> None:
    text = f"select {COLUMNS[columns]} from {ROWS}"
    # Without these rules Spark computes the query while it plans.
    rules = "ConvertToLocalRelation", "ConstantFolding"
    excluded = ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in rules)
    with conf(spark, {"spark.sql.optimizer.excludedRules": excluded}):
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = answer(ACTIONS[action], spark.sql(text))
        found = answer(ACTIONS[action], spark.sql(text))
    assert found == expected
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native", report.reasons
