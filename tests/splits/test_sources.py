# SPDX-License-Identifier: Apache-2.0
"""The data sources that come with Volley: rows of files while a directory is listed, tables of Iceberg."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    StringContains,
)
from pyspark.sql.types import DateType, LongType, StructType

import volley
from volley.errors import TableNotSupported
from volley.sources.files import FilePartition, Files, FilesReader
from volley.splits.datasource import DataSourceSplits, make_portable
from volley.testing.contracts.split_source import source_scan, splits_of
from volley.testing.rows import assert_same_rows

TABLE = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "name": [f"n{number}" for number in range(100)],
        "share": [number / 8 for number in range(100)],
    }
)


def read_all(reader: FilesReader) -> pa.Table:
    batches = [batch for partition in reader.discover() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches)


def reader_of(path: Path, **options: str) -> FilesReader:
    source = Files({"path": str(path), **options})
    return source.reader(source.schema())


def write_json(table: pa.Table, path: Path) -> None:
    import json

    path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))


class TestFiles:
    @pytest.mark.parametrize(
        ("kind", "write"),
        [("parquet", pq.write_table), ("orc", orc.write_table), ("csv", csv.write_csv), ("json", write_json)],
    )
    def test_every_format(self, tmp_path: Path, kind: str, write: Callable[[pa.Table, Path], Any]) -> None:
        write(TABLE, tmp_path / f"a.{kind}")
        write(TABLE.slice(10, 20), tmp_path / f"b.{kind}")
        found = read_all(reader_of(tmp_path, format=kind)).sort_by(
            [("id", "ascending"), ("name", "ascending")]
        )
        both = pa.concat_tables([TABLE, TABLE.slice(10, 20)])
        assert found.equals(both.sort_by([("id", "ascending"), ("name", "ascending")]))

    def test_folders_are_columns_and_hidden_files_are_none(self, tmp_path: Path) -> None:
        for day in ("2024-02-28", "2024-02-29"):
            folder = tmp_path / f"day={day}" / "kind=a%3Db"
            folder.mkdir(parents=True)
            pq.write_table(TABLE.slice(0, 3), folder / "a.parquet")
        (tmp_path / "_SUCCESS").touch()
        (tmp_path / ".part.crc").write_bytes(b"x")
        reader = reader_of(tmp_path)
        found = read_all(reader)
        assert found.num_rows == 6
        assert set(found["day"].to_pylist()) == {"2024-02-28", "2024-02-29"}
        assert set(found["kind"].to_pylist()) == {"a=b"}
        declared = StructType().add("day", DateType()).add("id", LongType()).add("gone", LongType())
        typed = read_all(Files({"path": str(tmp_path)}).reader(declared))
        assert typed.schema.names == ["day", "id", "gone"]
        assert set(typed["day"].to_pylist()) == {datetime.date(2024, 2, 28), datetime.date(2024, 2, 29)}
        assert typed["gone"].null_count == 6

    def test_a_large_file_is_cut_and_every_row_is_read_once(self, tmp_path: Path) -> None:
        pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=5)
        reader = reader_of(tmp_path, splitBytes="700")
        pieces = list(reader.discover())
        assert len(pieces) > 3
        assert sum(piece.size_bytes for piece in pieces) == (tmp_path / "a.parquet").stat().st_size
        assert sorted(read_all(reader)["id"].to_pylist()) == list(range(100))

    def test_options_have_no_case_in_other_processes(self, tmp_path: Path) -> None:
        pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=5)
        # As Spark creates it.
        source = Files(CaseInsensitiveDict({"path": str(tmp_path), "splitBytes": "700"}))
        scan = source_scan(source, source.schema())
        elsewhere = replace(scan, reader=make_portable(scan.reader))
        assert len(splits_of(DataSourceSplits(elsewhere))) == len(splits_of(DataSourceSplits(scan))) > 3

    def test_a_large_orc_file_is_cut_by_its_stripes(self, tmp_path: Path) -> None:
        ids = pa.table(
            {"id": pa.array(range(50_000), pa.int64()), "name": [f"{n:020}" for n in range(50_000)]}
        )
        path = tmp_path / "a.orc"
        orc.write_table(ids, path, stripe_size=64 * 1024, batch_size=1024)
        stripes = orc.ORCFile(path).nstripes
        assert stripes > 4
        reader = reader_of(tmp_path, format="orc", splitBytes=str(path.stat().st_size // 4 + 1))
        counts = [sum(batch.num_rows for batch in reader.read(part)) for part in reader.discover()]
        assert len(counts) == 4
        assert all(0 < count < 50_000 for count in counts)
        assert sorted(read_all(reader)["id"].to_pylist()) == list(range(50_000))
        # More pieces than stripes: some have none.
        tiny = reader_of(tmp_path, format="orc", splitBytes=str(path.stat().st_size // (3 * stripes)))
        assert sorted(read_all(tiny)["id"].to_pylist()) == list(range(50_000))

    def test_files_are_found_one_by_one(self, tmp_path: Path) -> None:
        for number in range(3):
            pq.write_table(TABLE, tmp_path / f"{number}.parquet")
        found = FilesReader(str(tmp_path), "parquet", 2**20, None).discover()
        assert isinstance(next(found), FilePartition)
        # What appears while the listing goes on, in a folder that it has not come to, is found.
        (tmp_path / "later").mkdir()
        pq.write_table(TABLE, tmp_path / "later" / "x.parquet")
        assert len(list(found)) >= 2

    @pytest.mark.parametrize(
        ("kind", "write"),
        [("parquet", pq.write_table), ("orc", orc.write_table), ("csv", csv.write_csv), ("json", write_json)],
    )
    def test_folders_that_a_filter_excludes_are_not_listed(
        self, tmp_path: Path, kind: str, write: Callable[[pa.Table, Path], Any]
    ) -> None:
        for day in ("2024-02-28", "2024-02-29", "2024-03-01", "__HIVE_DEFAULT_PARTITION__"):
            folder = tmp_path / f"day={day}" / "hour=7"
            folder.mkdir(parents=True)
            write(TABLE.slice(0, 3), folder / f"a.{kind}")
        declared = StructType().add("day", DateType()).add("hour", LongType()).add("id", LongType())

        def days(*filters: Filter) -> list[str]:
            reader = Files({"path": str(tmp_path), "format": kind}).reader(declared)
            reader.prune(filters)
            found = {str(row["day"]) for row in read_all(reader).to_pylist()}
            assert {str(partition.values["day"]) for partition in reader.discover()} == found
            return sorted(found)

        leap = datetime.date(2024, 2, 29)
        assert days(EqualTo(("day",), leap)) == ["2024-02-29"]
        assert days(LessThan(("day",), leap)) == ["2024-02-28"]
        assert days(GreaterThanOrEqual(("day",), leap), EqualTo(("hour",), 7)) == ["2024-02-29", "2024-03-01"]
        assert days(In(("day",), (leap, datetime.date(2024, 3, 1)))) == ["2024-02-29", "2024-03-01"]

    def test_row_groups_that_a_filter_excludes_are_not_read(self, tmp_path: Path) -> None:
        pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=10)

        def rows(*filters: Filter) -> int:
            reader = reader_of(tmp_path)
            reader.prune(filters)
            return sum(batch.num_rows for part in reader.discover() for batch in reader.read(part))

        assert rows() == 100
        assert rows(GreaterThan(("id",), 89)) == 10
        assert rows(In(("id",), (5, 15))) == 20
        assert rows(EqualTo(("name",), "n5")) < 100
        # No order that Spark and the statistics share, another type, a column that is not there: nothing is left out.
        assert rows(GreaterThan(("share",), 12.0)) == 100
        assert rows(EqualTo(("id",), "5")) == 100
        assert rows(EqualTo(("gone",), 5)) == 100

    @pytest.mark.parametrize(
        ("kind", "write"),
        [("parquet", pq.write_table), ("orc", orc.write_table), ("csv", csv.write_csv), ("json", write_json)],
    )
    def test_columns_that_are_not_wanted_are_not_read(
        self, tmp_path: Path, kind: str, write: Callable[[pa.Table, Path], Any]
    ) -> None:
        folder = tmp_path / "day=1"
        folder.mkdir()
        write(TABLE, folder / f"a.{kind}")
        for wanted in (["name", "id"], ["share"], ["day", "share"], ["day"]):
            reader = reader_of(tmp_path, format=kind)
            reader.select(wanted)
            found = read_all(reader)
            assert found.column_names == wanted
            assert found.num_rows == 100
            for name in set(wanted) - {"day"}:
                assert found[name].combine_chunks().equals(TABLE[name].combine_chunks())

    def test_a_query_prunes(self, spark: SparkSession, tmp_path: Path) -> None:
        for day in range(1, 5):
            (tmp_path / f"day={day}").mkdir()
            pq.write_table(TABLE, tmp_path / f"day={day}" / "a.parquet")
        spark.dataSource.register(Files)
        read = spark.read.format("volley_files").schema("id bigint, name string, day int")
        read.load(str(tmp_path)).createOrReplaceTempView("files")
        sql = "select day, count(*), sum(id) from files where day in (2, 3) and id > 3 and id % 2 = 0 group by day"
        assert_same_rows(spark, sql)
        spark.sql(sql).collect()
        report = volley.last_query(spark)
        assert report is not None
        (feed,) = report.stages[0].feeds
        assert (feed.found, feed.done, feed.final) == (2, 2, True)
        for text in (
            "select count(*) from files",
            "select day from files",
            "select name, day + 1 from files where id = 7",
        ):
            assert_same_rows(spark, text)

    def test_nothing_there_needs_a_schema(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no file"):
            Files({"path": str(tmp_path)}).schema()
        with pytest.raises(ValueError, match="format"):
            Files({"path": str(tmp_path), "format": "xml"}).schema()

    def test_it_runs_natively_with_sparks_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        for day in (1, 2):
            (tmp_path / f"day={day}").mkdir()
            pq.write_table(TABLE, tmp_path / f"day={day}" / "a.parquet")
        spark.dataSource.register(Files)
        spark.read.format("volley_files").load(str(tmp_path)).createOrReplaceTempView("files")
        assert_same_rows(
            spark, "select day, count(*), sum(id), max(name) from files where id > 3 group by day"
        )


class TestIceberg:
    """Against a table that the test makes; where pyiceberg is not installed there is nothing to test."""

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Any:
        catalog = pytest.importorskip("pyiceberg.catalog")
        made = catalog.load_catalog("volley", **self.properties(tmp_path))
        made.create_namespace("sales")
        return made

    @staticmethod
    def properties(directory: Path) -> dict[str, str]:
        return {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}

    def source(self, directory: Path, **options: str) -> Any:
        from volley.sources.iceberg import Iceberg

        properties = {f"catalog.{key}": value for key, value in self.properties(directory).items()}
        return Iceberg({"path": "sales.orders", **properties, **options})

    def rows(self, source: Any) -> list[int]:
        from volley.splits.datasource import decode, encode

        reader = source.reader(source.schema())
        # As they would travel to a daemon.
        partitions = [decode(encode(found, pickles=False), pickles=False) for found in reader.discover()]
        return sorted(
            value for found in partitions for batch in reader.read(found) for value in batch["id"].to_pylist()
        )

    def test_files_deletes_evolution_and_older_snapshots(self, catalog: Any, tmp_path: Path) -> None:
        table = catalog.create_table("sales.orders", schema=TABLE.schema)
        assert self.rows(self.source(tmp_path)) == []
        table.append(TABLE.slice(0, 50))
        before = table.current_snapshot().snapshot_id
        table.append(TABLE.slice(50))
        table.delete("id < 10")
        assert self.rows(self.source(tmp_path)) == list(range(10, 100))
        assert self.rows(self.source(tmp_path, snapshot=str(before))) == list(range(50))
        with table.update_schema() as update:
            update.rename_column("name", "title")
        source = self.source(tmp_path)
        assert source.schema().fieldNames() == ["id", "title", "share"]
        reader = source.reader(source.schema())
        titles = {
            value
            for found in reader.discover()
            for batch in reader.read(found)
            for value in batch["title"].to_pylist()
        }
        assert titles == {f"n{number}" for number in range(10, 100)}

    def test_files_that_a_filter_excludes_are_not_planned(self, catalog: Any, tmp_path: Path) -> None:
        dated = TABLE.append_column("day", pa.array(range(100), pa.int32()).cast(pa.date32()))
        table = catalog.create_table("sales.orders", schema=dated.schema)
        for start in range(0, 100, 25):
            table.append(dated.slice(start, 25))
        source = self.source(tmp_path)

        def files(*filters: Filter) -> int:
            reader = source.reader(source.schema())
            reader.prune(filters)
            return len(list(reader.discover()))

        assert files() == 4
        narrow = source.reader(source.schema())
        narrow.select(["name", "id"])
        assert {batch.schema.names[0] for part in narrow.discover() for batch in narrow.read(part)} == {
            "name"
        }
        assert files(GreaterThan(("id",), 60)) == 2
        assert files(In(("id",), (1, 99))) == 2
        assert files(EqualTo(("name",), "n3"), LessThan(("id",), 50)) <= 2
        assert files(GreaterThanOrEqual(("day",), datetime.date(1970, 3, 20))) == 1
        # A filter that Iceberg does not know leaves nothing out.
        assert files(StringContains(("name",), "n")) == 4

    def test_versions(self, catalog: Any, tmp_path: Path) -> None:
        table = catalog.create_table("sales.orders", schema=TABLE.schema)
        table.append(TABLE.slice(0, 10))
        first = table.current_snapshot()
        types = pytest.importorskip("pyiceberg.types")
        table.manage_snapshots().create_branch(first.snapshot_id, "audit").create_tag(
            first.snapshot_id, "v1"
        ).commit()
        with table.update_schema() as update:
            update.add_column("more", types.StringType())
        table.append(TABLE.slice(10, 20).append_column("more", pa.array(["m"] * 20)))
        for version in (
            {"snapshot": str(first.snapshot_id)},
            {"branch": "audit"},
            {"tag": "v1"},
            {"asOfTimestamp": str(first.timestamp_ms)},
        ):
            source = self.source(tmp_path, **version)
            # A branch has the schema of the table, older versions have their own.
            assert ("more" in source.schema().fieldNames()) == ("branch" in version)
            assert self.rows(source) == list(range(10))
        assert self.rows(self.source(tmp_path)) == list(range(30))
        for wrong in (
            {"tag": "audit"},
            {"branch": "gone"},
            {"tag": "v1", "branch": "audit"},
            {"asOfTimestamp": "1"},
        ):
            with pytest.raises(ValueError, match=r"no |not both"):
                self.source(tmp_path, **wrong).schema()

    def test_the_version_is_that_of_the_schema(self, catalog: Any, tmp_path: Path) -> None:
        table = catalog.create_table("sales.orders", schema=TABLE.schema)
        table.append(TABLE.slice(0, 10))
        source = self.source(tmp_path)
        schema = source.schema()
        table.append(TABLE.slice(10, 10))
        with table.update_schema() as update:
            update.rename_column("id", "key")
        reader = source.reader(schema)
        (part,) = reader.discover()
        assert [value for batch in reader.read(part) for value in batch["id"].to_pylist()] == list(range(10))

    def test_a_name_that_another_column_has_by_now_prunes_nothing(self, catalog: Any, tmp_path: Path) -> None:
        numbers = pa.table({"a": pa.array([1, 2], pa.int64()), "b": pa.array([100, 200], pa.int64())})
        table = catalog.create_table("sales.orders", schema=numbers.schema)
        table.append(numbers)
        snapshot = str(table.current_snapshot().snapshot_id)
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("a")
        with table.update_schema() as update:
            update.rename_column("b", "a")
        source = self.source(tmp_path, snapshot=snapshot)
        reader = source.reader(source.schema())
        reader.prune([LessThan(("a",), 50)])
        assert len(list(reader.discover())) == 1
        now = self.source(tmp_path)
        reader = now.reader(now.schema())
        reader.prune([LessThan(("a",), 50)])
        assert list(reader.discover()) == []

    def test_partitions_evolve(self, catalog: Any, tmp_path: Path) -> None:
        kinds = TABLE.append_column("kind", pa.array(["a", "b"] * 50))
        table = catalog.create_table("sales.orders", schema=kinds.schema)
        table.append(kinds.slice(0, 50))
        with table.update_spec() as update:
            update.add_identity("kind")
        table.append(kinds.slice(50))
        source = self.source(tmp_path)
        assert self.rows(source) == list(range(100))
        reader = source.reader(source.schema())
        everything = len(list(reader.discover()))
        reader.prune([EqualTo(("kind",), "a")])
        # The file of the old specification, and one of the two of the new one.
        assert (everything, len(list(reader.discover()))) == (3, 2)

    def test_manifests_are_read_as_they_are_needed(
        self, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = pytest.importorskip("pyiceberg.table")
        table = catalog.create_table("sales.orders", schema=TABLE.schema)
        for start in range(0, 100, 5):
            table.append(TABLE.slice(start, 5))
        opened: list[Any] = []
        real = module._open_manifest

        def open_manifest(*given: Any) -> Any:
            opened.append(given)
            return real(*given)

        monkeypatch.setattr(module, "_open_manifest", open_manifest)
        source = self.source(tmp_path)
        found = source.reader(source.schema()).discover()
        assert next(found).rows == 5
        assert len(opened) <= 8
        assert len(list(found)) == 19
        assert len(opened) == 20

    def test_equality_deletes_are_refused_when_the_schema_is_asked_for(
        self, catalog: Any, tmp_path: Path
    ) -> None:
        table = catalog.create_table("sales.orders", schema=TABLE.schema)
        table.append(TABLE)
        path = Path(table.metadata_location.removeprefix("file://"))
        text = path.read_text()
        assert '"total-equality-deletes":"0"' in text
        # pyiceberg cannot write them. This is what a snapshot says that has some.
        path.write_text(text.replace('"total-equality-deletes":"0"', '"total-equality-deletes":"3"'))
        with pytest.raises(TableNotSupported, match="equality deletes"):
            self.source(tmp_path).schema()

    def test_it_runs_natively(self, spark: SparkSession, catalog: Any, tmp_path: Path) -> None:
        from volley.sources.iceberg import Iceberg

        catalog.create_table("sales.orders", schema=TABLE.schema).append(TABLE)
        spark.dataSource.register(Iceberg)
        reader = spark.read.format("volley_iceberg")
        for key, value in self.properties(tmp_path).items():
            reader = reader.option(f"catalog.{key}", value)
        found = reader.load("sales.orders").where("id % 2 = 0")
        assert sorted(row.id for row in found.collect()) == list(range(0, 100, 2))
        report = volley.last_query(spark)
        assert report is not None
        assert (report.engine, report.spark_tasks) == ("native", 0)
