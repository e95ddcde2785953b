# SPDX-License-Identifier: Apache-2.0
"""The classes of classic sessions, which Spark 4.0 moved apart from those that Spark Connect shares."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from volley.spark_versions.arrow import arrow_schema
from volley.spark_versions.registry import current

if TYPE_CHECKING:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
else:
    ClassicDataFrame = importlib.import_module(current().frame_module).DataFrame

__all__ = ["ClassicDataFrame", "collect_table", "local_frame", "plan_frame"]


def plan_frame(spark: SparkSession, plan: Any) -> ClassicDataFrame:
    """The DataFrame of a logical plan."""
    package: Any = spark._jvm
    for name in current().jvm_sql_package.split("."):
        package = getattr(package, name)
    return ClassicDataFrame(package.Dataset.ofRows(spark._jsparkSession, plan), spark)


def local_frame(spark: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """A DataFrame of the rows of a table."""
    if current().creates_frames_of_tables:
        return spark.createDataFrame(table, schema)
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    # As PySpark sends the batches that it makes of pandas.
    jvm: Any = spark._jvm
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    context: Any = spark.sparkContext
    sent = context._serialize_to_jvm(
        batches, ArrowStreamSerializer(), jvm.PythonSQLUtils.readArrowStreamFromFile, jvm.ArrowIteratorServer
    )
    rows = jvm.PythonSQLUtils.toDataFrame(sent, schema.json(), spark._jsparkSession)
    return ClassicDataFrame(rows, spark)


def collect_table(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame as a table: its method `toArrow`, also where it has none."""
    if current().has_to_arrow:
        return frame.toArrow()
    batches = frame._collect_as_arrow()  # type: ignore[operator]
    schema = arrow_schema(frame.schema)
    # Spark's timestamps are in the time zone of the session.
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
