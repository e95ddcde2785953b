# SPDX-License-Identifier: Apache-2.0
"""Rows with a column of each type that Python functions are given, and functions whose types mypy can check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.functions import pandas_udf


def in_pandas(function: Callable[..., Any], result: str) -> Callable[..., Column]:
    """`pandas_udf`, whose overloads do not know type hints."""
    made: Callable[..., Column] = pandas_udf(function, result)  # type: ignore[call-overload]
    return made


def in_arrow(function: Callable[..., Any], result: str) -> Callable[..., Column]:
    """`arrow_udf`, likewise."""
    from pyspark.sql.pandas.functions import arrow_udf  # which Spark 4.0 does not have

    made: Callable[..., Column] = arrow_udf(function, result)  # type: ignore[call-overload]
    return made


COLUMNS = {
    "id": "id",
    "tiny": "cast(id % 7 - 3 as tinyint)",
    "small": "cast(id as smallint)",
    "i": "cast(id as int)",
    "flag": "id % 2 = 0",
    "f": "cast(id as float) / 3",
    "dbl": "cast(id as double) / 7",
    "d": "cast(id as decimal(10, 2))",
    "wide": "cast(id as decimal(38, 18))",
    "t": "timestamp_seconds(id * 86400 * 31)",
    "dt": "date_add(date'1960-02-27', cast(id * 99 as int))",
    "s": "case when id % 3 > 0 then cast(id as string) end",
    "b": "cast(cast(id as string) as binary)",
    "a": "array(id, null)",
    "st": "named_struct('x', id, 'y', 'q')",
    "k": "case when id % 4 > 0 then id % 4 end",
}
"""Columns of every type that functions can be given natively, some with NULLs."""


def rows(spark: SparkSession) -> DataFrame:
    columns = ", ".join(f"{expression} as {name}" for name, expression in COLUMNS.items())
    return spark.sql(f"select {columns} from range(0, 60, 1, 2)")
