# SPDX-License-Identifier: Apache-2.0
"""The command that a DataFrameWriter would run.

Since Spark 4.1 a writer gives it. Before, Spark makes it and runs it in one step, so it is made here as Spark makes it,
where that is one call of Spark's own planner; None where it is more.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrameWriter

from volley.plan.jvm import Java, copy_with
from volley.spark_versions.registry import current

# Spark writes these by `DataSource`, others perhaps by a provider of their own.
_FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")

# Positions of the arguments of `InsertIntoStatement`, from 1.
_QUERY = 4


def save_command(writer: DataFrameWriter, path: str | None) -> Java | None:
    jvm: Any = writer._spark._jvm
    if current().has_writer_commands:
        return writer._jwrite.saveCommand(jvm.scala.Option.apply(path))
    java = writer._jwrite
    options = java.extraOptions()
    is_ambiguous = path is not None and options.contains("path")
    if java.source().lower() not in _FILE_FORMATS or _is_arranged(java) or is_ambiguous:
        return None
    settings = options.originalMap()
    if path is not None:
        settings = getattr(settings, "$plus")(jvm.scala.Tuple2("path", path))
    nothing = jvm.scala.Option.empty()
    nobody = jvm.PythonUtils.toSeq([])
    columns = java.partitioningColumns()
    source = jvm.org.apache.spark.sql.execution.datasources.DataSource(
        writer._spark._jsparkSession,
        java.source(),
        nobody,
        nothing,
        columns.get() if columns.isDefined() else nobody,
        nothing,
        settings,
        nothing,
    )
    return source.planForWriting(_mode(java), writer._df._jdf.logicalPlan())


def insert_command(writer: DataFrameWriter, table: str) -> Java | None:
    java = writer._jwrite
    if current().has_writer_commands:
        return java.insertIntoCommand(table)
    if _is_arranged(java) or java.partitioningColumns().isDefined():
        return None
    how = "OVERWRITE" if str(_mode(java)) == "Overwrite" else "INTO"
    parser = writer._spark._jsparkSession.sessionState().sqlParser()
    statement = parser.parsePlan(f"INSERT {how} TABLE {table} SELECT 1")
    return copy_with(statement, {_QUERY: writer._df._jdf.logicalPlan()})


def save_as_table_command(writer: DataFrameWriter, table: str) -> Java | None:
    return writer._jwrite.saveAsTableCommand(table) if current().has_writer_commands else None


def _mode(java: Java) -> Java:
    return java.curmode() if current().has_current_mode else java.mode()


def _is_arranged(java: Java) -> bool:
    """Whether the writer uses buckets or clusters, which Spark validates."""
    has_clusters = current().has_clustering and java.clusteringColumns().isDefined()
    return bool(java.numBuckets().isDefined() or has_clusters)
