# SPDX-License-Identifier: Apache-2.0
"""Plans over an Iceberg table in a catalog of Spark's: scans of Iceberg's own classes, whose files Iceberg has planned.

Iceberg's runtime for Spark is a jar that these tests do not have. Classes with its names are compiled here, with what a
scan shows of the real ones, over files that pyiceberg writes. They cannot read: pyiceberg says which rows there are.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.spark_versions.registry import current
from volley.testing.java_classes import compile_java
from volley.testing.session import conf

pyiceberg_catalog: Any = pytest.importorskip(
    "pyiceberg.catalog", reason="needs pyiceberg, of the extra iceberg"
)
types: Any = pytest.importorskip("pyiceberg.types")

Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def classes(spark_session: SparkSession) -> Any:
    files = compile_java(spark_session, "IcebergFiles.java")
    io = compile_java(spark_session, "IcebergFileIO.java", files)
    return compile_java(spark_session, "IcebergTable.java", io)


INSIDE = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("share", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("inside", INSIDE),
        ("list", pa.list_(INSIDE)),
        ("map", pa.map_(pa.string(), INSIDE)),
        ("part", pa.string()),
    ]
)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n,
            "name": f"n{n}",
            "share": n / 2,
            "price": Decimal(n).scaleb(-2),
            "day": date(2024, 1, 1 + n % 28),
            "at": datetime(2024, 1, 1, n % 24),
            "inside": {"x": n, "y": "y"} if n % 3 else None,
            "list": [{"x": n, "y": None}, None],
            "map": [("k", {"x": n, "y": "m"})],
            "part": ["a", "b", None][n % 3],
        }
        for n in range(first, first + count)
    ]


class Lake:
    """A table, and the plans of Spark over it."""

    def __init__(self, spark: SparkSession, classes: Any, path: Path, *identity: str) -> None:
        self.spark, self.classes, self.path = spark, classes, path
        catalog = pyiceberg_catalog.load_catalog(
            "volley", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}"
        )
        catalog.create_namespace("db")
        self.table = catalog.create_table("db.t", schema=ROWS)
        for name in identity:
            with self.table.update_spec() as update:
                update.add_identity(name)
        self.table.append(pa.Table.from_pylist(rows(0, 20), ROWS))

    def tasks(self) -> list[dict[str, Any]]:
        """What Iceberg's planning gives, as `IcebergFiles.java` reads it."""
        specs = self.table.specs()
        return [
            {
                "file": {
                    "location": task.file.file_path,
                    "format": "PARQUET",
                    "size": task.file.file_size_in_bytes,
                    "partition": [task.file.partition[at] for at in range(len(task.file.partition))],
                },
                "spec": {
                    "id": task.file.spec_id,
                    "fields": [
                        {"source": field.source_id, "transform": str(field.transform)}
                        for field in specs[task.file.spec_id].fields
                    ],
                },
                "deletes": [],
            }
            for task in self.table.scan().plan_files()
        ]

    def frame(
        self,
        change: Change = lambda tasks: None,
        extra: str = "",
        io: str = "org.apache.iceberg.hadoop.HadoopFileIO",
    ) -> DataFrame:
        """A frame over the table, with `change` made to its tasks and with columns of Iceberg's own."""
        from pyspark.sql.types import StructType

        from volley.spark_versions.arrow import spark_schema

        tasks = self.tasks()
        change(tasks)
        described = json.loads(self.table.schema().model_dump_json())
        wanted = self.table.schema().as_arrow()
        schema = StructType.fromJson(json.loads(spark_schema(wanted).json()))
        for name, kind, number in RESERVED:
            if name in extra.split():
                schema = schema.add(name, kind)
                described["fields"].append({"id": number, "name": name, "type": kind, "required": False})
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        configuration = session.sessionState().newHadoopConf()
        io_object = self._make(io, [configuration]) if "." in io else configuration
        table = self._make(
            "org.apache.iceberg.spark.source.IcebergTable",
            [session.parseDataType(schema.json()), json.dumps(described), json.dumps(tasks), io_object],
        )
        sql = getattr(jvm, current().jvm_sql_package.split(".")[0])
        for part in current().jvm_sql_package.split(".")[1:]:
            sql = getattr(sql, part)
        none = jvm.scala.Option.empty()
        relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(
            table, none, none
        )
        return DataFrame(sql.Dataset.ofRows(session, relation), self.spark)

    def _make(self, name: str, arguments: list[Any]) -> Any:
        gateway: Any = self.spark.sparkContext._gateway
        given = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
        for place, value in enumerate(arguments):
            given[place] = value
        (constructor,) = self.classes.loadClass(name).getConstructors()
        return constructor.newInstance(given)

    def expected(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.scan().to_arrow().to_pylist()
        return found


LAST = 2**31 - 1
RESERVED = [
    ("_file", "string", LAST - 1),
    ("_pos", "long", LAST - 2),
    ("_deleted", "boolean", LAST - 3),
    ("_spec_id", "integer", LAST - 4),
]


@pytest.fixture
def lake(spark: SparkSession, classes: Any, tmp_path: Path) -> Lake:
    return Lake(spark, classes, tmp_path, "part")


def native(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows, if they were read natively."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    report = volley.last_query(frame.sparkSession)
    assert report is not None
    assert report.engine == "native", [str(reason) for reason in report.reasons]
    return found


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert sorted(map(str, found)) == sorted(map(str, expected))


def reason_of(frame: DataFrame) -> str:
    return " ".join(map(str, volley.explain(frame).reasons))


def test_a_table_is_native(lake: Lake) -> None:
    same(native(lake.frame()), lake.expected())
    assert native(lake.frame().groupBy().count()) == [{"count": 20}]
    found = native(lake.frame().where("part = 'a' AND id > 3").select("id", "part"))
    same(found, [{"id": n, "part": "a"} for n in (6, 9, 12, 15, 18)])
    assert native(lake.frame().where("part IS NULL").groupBy().count()) == [{"count": 6}]


def test_columns_are_found_by_id(lake: Lake) -> None:
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("name", "title")
        update.update_column("id", types.LongType())
        update.update_column("share", types.DoubleType())
        update.update_column("price", types.DecimalType(18, 2))
        update.rename_column("inside.x", "ex")
        update.add_column(("inside", "z"), types.StringType())
        update.delete_column("day")
        update.add_column(("list", "z"), types.LongType())
        update.rename_column("map.y", "why")
    with lake.table.update_schema() as update:
        # Not the column that had this name.
        update.add_column("day", types.StringType())
        update.add_column("name", types.IntegerType())
    same(native(lake.frame()), lake.expected())
    new = [
        {"id": 2**40, "title": "t", "share": 1e300, "price": Decimal("1234567890.12"), "part": "c"}
        | {
            "inside": {"ex": 1, "y": "y", "z": "z"},
            "list": [],
            "map": [],
            "day": "today",
            "name": 1,
            "at": None,
        }
    ]
    lake.table.append(pa.Table.from_pylist(new, lake.table.schema().as_arrow()))
    same(native(lake.frame()), lake.expected())
    for name in lake.table.schema().as_arrow().names:
        same(native(lake.frame().select(name)), [{name: row[name]} for row in lake.expected()])
    same(
        native(lake.frame().where("inside.ex = 4 OR title = 't'").select("id", "title")),
        [{"id": 4, "title": "n4"}, {"id": 2**40, "title": "t"}],
    )
    assert native(lake.frame().where("name = 1 AND day = 'today'").groupBy().count()) == [{"count": 1}]


@pytest.mark.parametrize("as_vector", [False, True], ids=["positions", "vector"])
@pytest.mark.usefixtures("distributed")
def test_deleted_rows_are_left_out(lake: Lake, tmp_path: Path, as_vector: bool) -> None:
    lake.table.append(pa.Table.from_pylist(rows(20, 70_000), ROWS))
    deleted: dict[str, list[int]] = {}
    for task in lake.tasks():
        location = task["file"]["location"]
        count = pq.read_metadata(location.removeprefix("file://")).num_rows
        # Single rows, many, and runs.
        deleted[location] = [n for n in range(count) if n == 1 or n % 5 == 0 or 1000 < n < 9000]

    def delete(tasks: list[dict[str, Any]]) -> None:
        described = write_vectors(tmp_path, deleted) if as_vector else write_positions(tmp_path, deleted)
        for task in tasks:
            task["deletes"] = described[task["file"]["location"]]

    kept: list[dict[str, Any]] = []
    for location, positions in deleted.items():
        table = pq.read_table(location.removeprefix("file://"), partitioning=None)
        gone = set(positions)
        kept += [row for number, row in enumerate(table.to_pylist()) if number not in gone]
    same(native(lake.frame(delete).select("id", "part")), [{"id": r["id"], "part": r["part"]} for r in kept])
    assert native(lake.frame(delete).groupBy().count()) == [{"count": len(kept)}]
    found = native(lake.frame(delete, extra="_file _pos _spec_id").select("id", "_file", "_pos", "_spec_id"))
    assert {(row["_file"], row["_pos"]) for row in found}.isdisjoint(
        (location, position) for location, positions in deleted.items() for position in positions
    )
    assert len(found) == len(kept)
    assert {row["_spec_id"] for row in found} == {lake.table.spec().spec_id}


def write_positions(home: Path, deleted: dict[str, list[int]]) -> dict[str, list[dict[str, Any]]]:
    """One file about all data files, as Iceberg writes one for a partition."""
    path = home / "deletes.parquet"
    pairs = [(location, position) for location, positions in deleted.items() for position in positions]
    names, positions = zip(*pairs, strict=True)
    pq.write_table(pa.table({"file_path": names, "pos": positions}), path)
    described = {"location": f"file://{path}", "size": path.stat().st_size}
    return {
        location: [described | {"content": "POSITION_DELETES", "format": "PARQUET"}] for location in deleted
    }


def write_vectors(home: Path, deleted: dict[str, list[int]]) -> dict[str, list[dict[str, Any]]]:
    """Bitmaps in a Puffin file, of which only these are read."""
    pyroaring = pytest.importorskip("pyroaring")
    path, body = home / "vectors.puffin", b"PFA1"
    places = {}
    for location, positions in deleted.items():
        bitmap = pyroaring.BitMap(positions)
        bitmap.run_optimize()
        vector = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + bitmap.serialize()
        blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        places[location] = {"offset": len(body), "length": len(blob)}
        body += blob
    path.write_bytes(body)
    described = {"location": f"file://{path}", "size": len(body), "content": "POSITION_DELETES"}
    return {location: [described | {"format": "PUFFIN"} | place] for location, place in places.items()}


def equality_deletes(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["deletes"] = [
        {"location": "file:/x", "size": 1, "content": "EQUALITY_DELETES", "format": "PARQUET"}
    ]


def deletes_in_avro(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["deletes"] = [
        {"location": "file:/x", "size": 1, "content": "POSITION_DELETES", "format": "AVRO"}
    ]


def data_in_orc(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["file"]["format"] = "ORC"


def encrypted(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["file"]["key"] = "k"


def metadata_rows(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["data"] = True


def another_spec(tasks: list[dict[str, Any]]) -> None:
    tasks[0]["spec"] = {"id": 0, "fields": []}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (equality_deletes, "equality deletes"),
        (deletes_in_avro, "position deletes of an Iceberg table in AVRO"),
        (data_in_orc, "data files of an Iceberg table in ORC"),
        (encrypted, "encrypted"),
        (metadata_rows, "metadata"),
        (another_spec, "partitioning has changed"),
    ],
)
def test_what_is_left_to_spark(lake: Lake, change: Change, reason: str) -> None:
    found = reason_of(lake.frame(change))
    assert "FILE_OPTION_NOT_SUPPORTED" in found
    assert reason in found


def test_columns_that_are_left_to_spark(lake: Lake) -> None:
    assert "metadata column _deleted" in reason_of(lake.frame(extra="_deleted"))
    assert "input_file_name()" in reason_of(lake.frame().selectExpr("id", "input_file_name()"))
    assert native(lake.frame(extra="_deleted").select("id").groupBy().count()) == [{"count": 20}]


def test_a_file_system_of_its_own_is_left_to_spark(spark: SparkSession, lake: Lake) -> None:
    found = reason_of(lake.frame(io="Configuration"))
    assert "FILE_SYSTEM_NOT_SUPPORTED" in found
    with conf(spark, {"fs.s3a.endpoint": "elsewhere"}):
        assert reason_of(lake.frame(io="Configuration")) == found


def test_a_file_without_ids_is_left_to_spark(spark: SparkSession, lake: Lake) -> None:
    """Its columns are found by a mapping of names, or by their order."""
    path = Path(lake.tasks()[0]["file"]["location"].removeprefix("file://"))
    pq.write_table(pq.read_table(path, partitioning=None).replace_schema_metadata().cast(ROWS), path)
    size = path.stat().st_size

    def resized(tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            if task["file"]["location"].endswith(str(path)):
                task["file"]["size"] = size

    lake.frame(resized).select("id").collect()
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert any("field id" in str(reason) for reason in report.reasons)
