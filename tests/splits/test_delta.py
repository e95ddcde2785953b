# SPDX-License-Identifier: Apache-2.0
"""Tables of Delta Lake that delta-rs has written, against delta-rs's own scan of them."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, Filter, GreaterThan, In, LessThan

import volley
from helpers.delta_tables import actions, change_schema, commit, delete_rows
from volley.errors import TableNotSupported
from volley.sources.delta import Delta
from volley.splits.datasource import decode, encode
from volley.testing.rows import assert_same_rows

deltalake: Any = pytest.importorskip("deltalake", reason="needs deltalake, of the extra delta")

UTC = datetime.timezone.utc
ROWS = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "name": [None, *(f"n{number}" for number in range(39))],
        "day": pa.array([19000 + number // 10 for number in range(40)], pa.int32()).cast(pa.date32()),
        "kind": ["a b", "c=d/é%"] * 20,
        "at": [datetime.datetime(2024, 1, 1, microsecond=number, tzinfo=UTC) for number in range(40)],
        "share": [float("nan"), *(number / 8 for number in range(39))],
        "price": pa.array([Decimal(number).scaleb(-2) for number in range(40)], pa.decimal128(10, 2)),
        "raw": [b"\0x"] * 40,
        "point": [{"x": number, "tags": [str(number)]} for number in range(40)],
    }
)


def read(path: Path, *filters: Filter, columns: list[str] | None = None, **options: str) -> pa.Table:
    """All rows, from partitions that have been where another process would take them from."""
    source = Delta(CaseInsensitiveDict({"path": str(path), **options}))
    schema = source.schema()
    reader = source.reader(schema)
    reader.prune(filters)
    reader.select(columns if columns is not None else schema.names)
    found = [decode(encode(part, pickles=False), pickles=False) for part in reader.discover()]
    batches = [batch for part in found for batch in reader.read(part)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def files(path: Path, *filters: Filter) -> int:
    source = Delta(CaseInsensitiveDict({"path": str(path)}))
    reader = source.reader(source.schema())
    reader.prune(filters)
    return len(list(reader.discover()))


def rows(table: Any, names: list[str]) -> Counter[str]:
    return Counter(repr([row[name] for name in names]) for row in pa.table(table).to_pylist())


def assert_as_delta_rs(path: Path, **options: str) -> pa.Table:
    """Compare with the scan of delta-rs, which has a reader of its own. Returns the rows."""
    found = read(path, columns=None, **options)
    version = int(options["versionAsOf"]) if "versionAsOf" in options else None
    expected = deltalake.DeltaTable(path, version=version).scan().read_all()
    names = list(expected.schema.names)
    assert sorted(found.column_names) == sorted(names)
    assert rows(found, names) == rows(expected, names)
    return found


class TestTables:
    def test_partitions_versions_and_rewritten_files(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS.slice(0, 30), partition_by=["day", "kind"])
        deltalake.write_deltalake(tmp_path, ROWS.slice(30), mode="append")
        deltalake.DeltaTable(tmp_path).delete("id = 3 or id > 35")
        found = assert_as_delta_rs(tmp_path)
        assert found.num_rows == 35
        assert set(found["kind"].to_pylist()) == {"a b", "c=d/é%"}
        assert found.schema.field("at").type == pa.timestamp("us", "UTC")
        deltalake.DeltaTable(tmp_path).create_checkpoint()
        for version, count in enumerate((30, 40, 35)):
            assert assert_as_delta_rs(tmp_path, versionAsOf=str(version)).num_rows == count
        deltalake.DeltaTable(tmp_path).optimize.compact()
        assert rows(assert_as_delta_rs(tmp_path), ["id"]) == rows(found, ["id"])

    def test_a_version_by_its_time(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS.slice(0, 30))
        deltalake.write_deltalake(tmp_path, ROWS.slice(30), mode="append")
        log = sorted((tmp_path / "_delta_log").glob("*.json"))
        for number, path in enumerate(log):
            text = path.read_text()
            stamp = text.partition('"timestamp":')[2].partition(",")[0]
            path.write_text(text.replace(stamp, str(1_700_000_000_000 + 1000 * number), 1))
            # Tables without in-commit timestamps have those of their log files.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        first = datetime.datetime.fromtimestamp(1_700_000_000, UTC).isoformat()
        assert read(tmp_path, timestampAsOf=first).num_rows == 30
        assert read(tmp_path, timestampAsOf="2024-06-01T00:00:00+00:00").num_rows == 40
        with pytest.raises(ValueError, match="not both"):
            read(tmp_path, timestampAsOf=first, versionAsOf="0")

    def test_the_version_is_that_of_the_schema(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS)
        source = Delta(CaseInsensitiveDict({"path": str(tmp_path)}))
        schema = source.schema()
        deltalake.write_deltalake(tmp_path, ROWS, mode="append")
        reader = source.reader(schema)
        assert sum(batch.num_rows for part in reader.discover() for batch in reader.read(part)) == 40

    def test_an_evolved_schema(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS.select(["id", "point"]))
        more = pa.table({"id": [100], "extra": ["e"], "point": [{"x": 1, "tags": ["t"], "z": 2.5}]})
        deltalake.write_deltalake(tmp_path, more, mode="append", schema_mode="merge")
        found = assert_as_delta_rs(tmp_path)
        assert found["extra"].null_count == 40
        assert {value["z"] for value in found["point"].to_pylist()} == {None, 2.5}

    def test_a_large_file_is_cut_and_every_row_is_read_once(self, tmp_path: Path) -> None:
        properties = deltalake.WriterProperties(max_row_group_size=5)
        deltalake.write_deltalake(tmp_path, ROWS, writer_properties=properties)
        assert files(tmp_path) == 1
        source = Delta(CaseInsensitiveDict({"path": str(tmp_path), "splitBytes": "700"}))
        assert len(list(source.reader(source.schema()).discover())) > 3
        assert sorted(read(tmp_path, splitBytes="700")["id"].to_pylist()) == list(range(40))

    @pytest.mark.parametrize("mode", ["name", "id"])
    def test_mapped_columns(self, tmp_path: Path, mode: str) -> None:
        table = ROWS.select(["id", "name", "point", "day"])
        deltalake.DeltaTable.create(
            tmp_path, table.schema, partition_by=["day"], configuration={"delta.columnMapping.mode": mode}
        )
        deltalake.write_deltalake(tmp_path, table, mode="append")
        assert deltalake.DeltaTable(tmp_path).protocol().min_reader_version >= 2
        assert_as_delta_rs(tmp_path)

        def rename(schema: dict[str, Any]) -> None:
            _, name, point, day = schema["fields"]
            name["name"], day["name"] = "id", "date"
            point["type"]["fields"][0]["name"] = "across"
            # The column `id` is dropped, and `name` takes its name.
            schema["fields"] = [point, day, name]

        change_schema(tmp_path, rename)
        if actions(tmp_path, "metaData")[-1]["partitionColumns"] == ["day"]:
            commit(
                tmp_path, [{"metaData": {**actions(tmp_path, "metaData")[-1], "partitionColumns": ["date"]}}]
            )
        found = assert_as_delta_rs(tmp_path)
        assert found.column_names == ["point", "date", "id"]
        assert set(found["id"].to_pylist()) == {None, *(f"n{number}" for number in range(39))}
        assert {row["across"] for row in found["point"].to_pylist()} == set(range(40))
        assert files(tmp_path, EqualTo(("date",), datetime.date(2022, 1, 9))) == 1
        assert read(tmp_path, EqualTo(("id",), "n3")).num_rows >= 1
        given = Delta(CaseInsensitiveDict({"path": str(tmp_path)}))
        schema = given.schema()
        for field in schema:
            field.metadata = {}
        with pytest.raises(TableNotSupported, match="a schema was given"):
            list(given.reader(schema).discover())

    def test_deletion_vectors(self, tmp_path: Path) -> None:
        properties = deltalake.WriterProperties(max_row_group_size=7)
        deltalake.write_deltalake(tmp_path, ROWS, partition_by=["kind"], writer_properties=properties)
        feature = deltalake.TableFeatures.DeletionVectors
        deltalake.DeltaTable(tmp_path).alter.add_feature([feature], allow_protocol_versions_increase=True)
        assert_as_delta_rs(tmp_path)
        delete_rows(tmp_path, [0, 6, 7, 13, 19])
        found = assert_as_delta_rs(tmp_path, splitBytes="300")
        assert found.num_rows == 35
        assert assert_as_delta_rs(tmp_path, versionAsOf="0").num_rows == 40
        # Row groups that a filter excludes count for the numbers of rows.
        last = read(tmp_path, GreaterThan(("id",), 27))
        assert {row for row in last["id"].to_pylist() if row > 27} == {
            row for row in found["id"].to_pylist() if row > 27
        }
        assert read(tmp_path, columns=[]).num_rows == 35

    def test_other_features_are_refused(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS.select(["id"]))
        features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
        commit(tmp_path, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}])
        with pytest.raises(TableNotSupported, match="typeWidening"):
            read(tmp_path)

    def test_dates_of_the_old_calendar_are_refused(self, tmp_path: Path) -> None:
        dates = pa.table({"day": [datetime.date(1850, 1, 1), datetime.date(2000, 1, 1)]})
        deltalake.write_deltalake(tmp_path, dates)
        assert read(tmp_path).num_rows == 2
        (file,) = tmp_path.glob("*.parquet")
        legacy = {b"org.apache.spark.version": b"3.5.0", b"org.apache.spark.legacyDateTime": b""}
        pq.write_table(dates.slice(1).replace_schema_metadata(legacy), file)
        assert read(tmp_path).num_rows == 1
        pq.write_table(dates.replace_schema_metadata(legacy), file)
        with pytest.raises(TableNotSupported, match="1900"):
            read(tmp_path)


class TestPruning:
    def test_files_that_a_filter_excludes_are_not_planned(self, tmp_path: Path) -> None:
        for start in range(0, 40, 10):
            deltalake.write_deltalake(tmp_path, ROWS.slice(start, 10), mode="append", partition_by=["kind"])
        assert files(tmp_path) == 8
        assert files(tmp_path, EqualTo(("kind",), "a b")) == 4
        assert files(tmp_path, GreaterThan(("id",), 25)) == 4
        assert files(tmp_path, In(("id",), (1, 39))) == 3
        assert files(tmp_path, LessThan(("day",), datetime.date(2022, 1, 9))) == 2
        assert files(tmp_path, EqualTo(("name",), "zzz")) == 0
        # No order that Spark and the statistics share, another type, a column that is not there.
        assert files(tmp_path, GreaterThan(("share",), 1e9)) == 8
        assert files(tmp_path, EqualTo(("id",), "5")) == 8
        assert files(tmp_path, EqualTo(("gone",), 5)) == 8

    def test_columns_that_are_not_wanted_are_not_read(self, tmp_path: Path) -> None:
        deltalake.write_deltalake(tmp_path, ROWS, partition_by=["day"])
        assert read(tmp_path, columns=["day", "id"]).column_names == ["day", "id"]
        assert read(tmp_path, columns=[]).num_rows == 40
        # A file without the columns of this one: a broken page would be an error.
        assert rows(read(tmp_path, columns=["day"]), ["day"]) == rows(ROWS, ["day"])


def test_it_runs_natively_with_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    for start in range(0, 40, 10):
        deltalake.write_deltalake(tmp_path, ROWS.slice(start, 10), mode="append")
    spark.dataSource.register(Delta)
    spark.read.format("volley_delta").load(str(tmp_path)).createOrReplaceTempView("lake")
    # All files are of the current version: Spark's own reader of Parquet tells the truth.
    spark.read.parquet(*deltalake.DeltaTable(tmp_path).file_uris()).createOrReplaceTempView("truth")
    columns = ", ".join(ROWS.column_names)
    difference = f"(select {columns} from lake except all select {columns} from truth)"
    assert spark.sql(f"select count(*) from {difference}").collect()[0][0] == 0
    assert_same_rows(
        spark, "select day, count(*), sum(price), max(name), max(at) from lake where id > 12 group by day"
    )
    spark.sql("select sum(id) from lake where id > 25").collect()
    report = volley.last_query(spark)
    assert report is not None
    (feed,) = report.stages[0].feeds
    assert (report.engine, feed.found, feed.final) == ("native", 2, True)
    older = spark.read.format("volley_delta").option("versionAsOf", "0").load(str(tmp_path))
    assert older.count() == 10
