# SPDX-License-Identifier: Apache-2.0
"""Plans over a Delta table as delta-spark makes them: Parquet scans, whose files come from the log of the table.

delta-spark is a jar that these tests do not have. Classes with its names are compiled here, with what a plan shows of
the real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import volley
from volley.sources.delta import Delta
from volley.testing.java_classes import compile_java
from volley.testing.rows import assert_same_rows

deltalake: Any = pytest.importorskip("deltalake", reason="needs deltalake, of the extra delta")


@pytest.fixture(scope="module")
def classes(spark_session: SparkSession) -> Any:
    return compile_java(spark_session, "DeltaTable.java").loadClass("org.apache.spark.sql.delta.DeltaTable")


class Lake:
    """A table of two partitions, with one more file than its current version has, and the plans of Spark over it."""

    def __init__(self, spark: SparkSession, classes: Any, path: Path) -> None:
        self.spark, self.classes, self.path = spark, classes, path
        names = [f"n{number}" for number in range(20)]
        rows = pa.table({"id": range(20), "name": names, "part": pa.array([1, 2] * 10, pa.int32())})
        deltalake.write_deltalake(path, rows, partition_by=["part"])
        deltalake.write_deltalake(path, rows.slice(0, 4), mode="append")
        deltalake.DeltaTable(path).delete("id = 7")

    def frame(self, mapping: str = "none", index: str = "log", vectors: int = 0) -> DataFrame:
        gateway: Any = self.spark.sparkContext._gateway
        jvm: Any = self.spark._jvm
        added = pa.table(deltalake.DeltaTable(self.path).get_add_actions()).to_pylist()

        def array(kind: Any, values: list[Any]) -> Any:
            made = gateway.new_array(kind, len(values))
            for place, value in enumerate(values):
                made[place] = value
            return made

        def row(value: int) -> Any:
            return jvm.org.apache.spark.sql.catalyst.InternalRow.fromSeq(jvm.PythonUtils.toSeq([value]))

        source = Delta({"path": str(self.path)})
        parse = self.spark._jsparkSession.parseDataType
        schema = parse(source.schema().json())
        partitions = parse(StructType([source.schema()["part"]]).json())
        values = [row(file["partition"]["part"]) for file in added]
        arguments = [
            index,
            str(self.path),
            partitions,
            array(jvm.org.apache.spark.sql.catalyst.InternalRow, values),
            array(jvm.java.lang.String, [f"file://{self.path}/{unquote(file['path'])}" for file in added]),
            array(jvm.long, [file["size_bytes"] for file in added]),
            # As after a copy of the table: the log has other times than the files.
            array(jvm.long, [1_700_000_000_000 for _ in added]),
            array(jvm.boolean, [place < vectors for place, _ in enumerate(added)]),
        ]
        made = self._call("index", arguments)
        relation = jvm.org.apache.spark.sql.execution.datasources.HadoopFsRelation(
            made,
            partitions,
            schema,
            jvm.scala.Option.empty(),
            self._call("format", [mapping]),
            jvm.PythonUtils.toScalaMap({}),
            self.spark._jsparkSession,
        )
        return DataFrame(self.spark._jsparkSession.baseRelationToDataFrame(relation), self.spark)

    def _call(self, name: str, arguments: list[Any]) -> Any:
        """Call a static method of a class that only its own loader knows."""
        gateway: Any = self.spark.sparkContext._gateway
        given = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
        for place, value in enumerate(arguments):
            given[place] = value
        (method,) = [method for method in self.classes.getMethods() if method.getName() == name]
        return method.invoke(None, given)


@pytest.fixture
def lake(spark: SparkSession, classes: Any, tmp_path: Path) -> Lake:
    return Lake(spark, classes, tmp_path)


def test_a_version_is_native(spark: SparkSession, lake: Lake) -> None:
    lake.frame().createOrReplaceTempView("lake")
    assert_same_rows(spark, "select part, count(*), sum(id), max(name) from lake where id > 2 group by part")
    assert_same_rows(spark, "select * from lake where part = 2 or name = 'n1'")
    expected = deltalake.DeltaTable(lake.path).to_pyarrow_table()
    assert spark.table("lake").columns == expected.column_names
    assert sorted(map(tuple, spark.table("lake").collect())) == sorted(
        tuple(row.values()) for row in expected.to_pylist()
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mapping": "name"}, "column mapping: name"),
        ({"mapping": "id"}, "column mapping: id"),
        ({"index": "changes"}, "TahoeChangeFileIndex"),
        ({"vectors": 1}, "deletion vectors"),
    ],
)
def test_what_means_more_than_the_rows_of_files_is_left_to_spark(
    lake: Lake, options: dict[str, Any], reason: str
) -> None:
    (found,) = volley.explain(lake.frame(**options)).reasons
    assert found.reason == "FILE_OPTION_NOT_SUPPORTED"
    assert reason in str(found)
