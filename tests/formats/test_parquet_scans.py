# SPDX-License-Identifier: Apache-2.0
"""Parquet tables whose files differ, from each other or from the table."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


def test_schemas_that_were_merged(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", "y"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": ["z"], "c": [1.5]}), tmp_path / "2.parquet")
    assert_same_rows(spark, lambda session: session.read.option("mergeSchema", "true").parquet(str(tmp_path)))
    with conf(spark, {"spark.sql.parquet.mergeSchema": "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)).where("c IS NULL"))


STORED: dict[str, pa.Array] = {
    "int8": pa.array([1, -128, None], pa.int8()),
    "int16": pa.array([1, -32768, None], pa.int16()),
    "int32": pa.array([1, -(2**31), None], pa.int32()),
    "int64": pa.array([1, 2**53 + 1, None], pa.int64()),
    "float": pa.array([0.1, float("nan"), None], pa.float32()),
    "double": pa.array([0.1, -0.0, None], pa.float64()),
    "decimal_5_2": pa.array([Decimal("1.25"), Decimal("-999.99"), None], pa.decimal128(5, 2)),
    "decimal_20_4": pa.array([Decimal("1.25"), Decimal(10) ** 15, None], pa.decimal128(20, 4)),
    "date": pa.array([datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None]),
    "text": pa.array(["1", "x", None]),
    "bool": pa.array([True, False, None]),
}
ASKED: tuple[str, ...] = (
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(10,2)",
    "decimal(10,4)",
)
ASKED += (
    "decimal(12,0)",
    "decimal(22,2)",
    "decimal(38,4)",
    "string",
    "date",
    "timestamp_ntz",
    "timestamp",
    "boolean",
)
WIDENED = {
    *(("int8", kind) for kind in ("smallint", "int", "bigint", "double", "decimal(12,0)")),
    *(("int32", kind) for kind in ("bigint", "double", "decimal(12,0)", "decimal(22,2)")),
    *(("int64", kind) for kind in ("decimal(22,2)",)),
    *(("decimal_5_2", kind) for kind in ("decimal(10,2)", "decimal(10,4)", "decimal(38,4)")),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A file a stored type."""
    for name, values in STORED.items():
        pq.write_table(pa.table({"v": values}), tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.since("4.0")
def test_types_that_were_widened(spark: SparkSession, stored: Path) -> None:
    for name, asked in sorted(WIDENED):
        assert_same_rows(spark, spark.read.schema(f"v {asked}").parquet(str(stored / f"{name}.parquet")))


@pytest.mark.slow
def test_every_type_as_every_other_one(spark: SparkSession, stored: Path) -> None:
    """Spark's rows or Spark's error, natively where that is certain."""
    for name in STORED:
        for asked in ASKED:
            frame = spark.read.schema(f"v {asked}").parquet(str(stored / f"{name}.parquet"))
            with conf(spark, {"spark.volley.enabled": "false"}):
                expected = outcome(frame)
            assert outcome(frame) == expected, (name, asked)


def outcome(frame: DataFrame) -> list[str] | str:
    try:
        return sorted(str(row) for row in frame.collect())
    except Exception as error:
        return type(error).__name__


def test_columns_with_a_default(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE with_default (a INT) USING parquet")
    try:
        spark.sql("INSERT INTO with_default VALUES (1)")
        spark.sql("ALTER TABLE with_default ADD COLUMN b INT DEFAULT 7")
        spark.sql("INSERT INTO with_default VALUES (2, 3)")
        rows = assert_same_rows(spark, "SELECT * FROM with_default", native=False)
        assert sorted(rows.column("b").to_pylist()) == [3, 7]
        assert_same_rows(spark, "SELECT a FROM with_default")
    finally:
        spark.sql("DROP TABLE with_default")


def test_corrupt_files(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number}.parquet")
    with conf(spark, {"spark.sql.files.ignoreCorruptFiles": "true"}):
        assert_same_rows(spark, lambda session: session.read.parquet(str(tmp_path)))
        frame = spark.read.schema("a bigint").option("ignoreCorruptFiles", "true").parquet(str(tmp_path))
        (tmp_path / "1.parquet").write_bytes(b"nonsense")
        frame = spark.read.schema("a bigint").option("ignoreCorruptFiles", "true").parquet(str(tmp_path))
        assert sorted(row.a for row in frame.collect()) == [0, 2]
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_times_inside_of_other_types(spark: SparkSession, tmp_path: Path, kind: str, zone: str) -> None:
    """INT96, in which Spark writes timestamps by default, also beside times without a zone, which are always INT64."""
    path = str(tmp_path / "times")
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.parquet.outputTimestampType": kind}
    with conf(spark, settings):
        with conf(spark, {"spark.volley.enabled": "false"}):
            # The nanoseconds of the first and the last one do not fit into 64 bits.
            values = [f"timestamp'{year:04}-03-10 02:30:00.123456'" for year in (1, 1500, 1969, 2024, 9999)]
            local = "timestamp_ntz'2024-03-10 02:30:00'"
            spark.sql(
                f"select array({', '.join(values)}, null) a, map({values[1]}, {values[4]}) m, {values[3]} t,"
                f" struct({values[0]} x, {local} y, array(struct({values[4]} z, 1 n, {local} l)) w) s"
            ).write.parquet(path)
        spark.read.parquet(path).createOrReplaceTempView("times")
        for query in ("a, m, s", "explode(a)", "s.x, s.y", "s.w[0].z, s.w[0].l", "map_keys(m), m[a[1]]", "t"):
            assert_same_rows(spark, f"select {query} from times")
        frame = spark.read.schema("s struct<x: timestamp_ntz>, t timestamp").parquet(path)
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(frame)
        assert outcome(frame) == expected


MODES = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")


@pytest.mark.parametrize("mode", ["CORRECTED", "LEGACY", "EXCEPTION"])
def test_rebase_modes_only_matter_to_files_of_unknown_writers(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    days = [datetime.date(1500, 3, 1), datetime.date(2024, 2, 29)]
    times = [datetime.datetime(1500, 3, 1, 12), datetime.datetime(2024, 2, 29)]
    pq.write_table(
        pa.table({"d": days, "t": pa.array(times, pa.timestamp("us", "UTC"))}), tmp_path / "other.parquet"
    )
    other, own = str(tmp_path / "other.parquet"), str(tmp_path / "own")
    spark.read.parquet(other).write.parquet(own)
    with conf(spark, dict.fromkeys(MODES, mode)):
        assert_same_rows(spark, lambda session: session.read.parquet(own))
        frame = spark.read.parquet(other)
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(frame)
        assert outcome(frame) == expected
        option = spark.read.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")
        assert_same_rows(spark, option.parquet(other))


def test_scans_of_data_source_v2(spark: SparkSession, tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / "p" / f"day={day}").mkdir(parents=True)
        pq.write_table(
            pa.table({"a": [1, 2, None], "b": ["x", None, "z"]}), tmp_path / "p" / f"day={day}" / "0.parquet"
        )
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.csv").write_text("a,b\n1,x\n2,y\n")
    with conf(spark, {"spark.sql.sources.useV1SourceList": ""}):
        spark.read.parquet(str(tmp_path / "p")).createOrReplaceTempView("p")
        csv = spark.read.schema("a int, b string").option("header", "true")
        csv.csv(str(tmp_path / "c")).createOrReplaceTempView("c")
        assert "BatchScan" in spark.sql("SELECT a FROM p")._jdf.queryExecution().executedPlan().toString()
        for query in (
            "SELECT * FROM p",
            "SELECT day, count(*), sum(a) FROM p WHERE day = 2 AND b IS NOT NULL GROUP BY day",
            "SELECT p.b, c.b FROM p JOIN c ON p.a = c.a",
            "SELECT count(*) FROM c WHERE a > 1",
        ):
            assert_same_rows(spark, query)
        with conf(spark, {"spark.sql.parquet.aggregatePushdown": "true"}):
            assert_same_rows(spark, "SELECT max(a), count(*) FROM p", native=False)


def test_partition_values(spark: SparkSession, tmp_path: Path) -> None:
    """Spark takes the digits of a path for those of a decimal; a data column may have any name."""
    for value in ("1.5", "2.25", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"k={value}").mkdir()
        pq.write_table(pa.table({"v": [value], "part": [1]}), tmp_path / f"k={value}" / "0.parquet")
    for kind in ("string", "double"):
        assert_same_rows(spark, spark.read.schema(f"v string, part bigint, k {kind}").parquet(str(tmp_path)))
    decimals = spark.read.schema("v string, k decimal(5,2)").parquet(str(tmp_path))
    rows = assert_same_rows(spark, decimals, native=False)
    assert set(rows.column("k").to_pylist()) == {Decimal("0.15"), Decimal("2.25"), None}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_partitions_by_time(distributed: SparkSession, tmp_path: Path, zone: str) -> None:
    spark = distributed
    for number, value in enumerate(
        ("2024-03-10 01%3A30%3A00", "2024-03-10 03%3A30%3A00.5", "1900-01-01 00%3A00%3A00")
    ):
        for folder in ("p", "c"):
            (tmp_path / folder / f"k={value}").mkdir(parents=True)
        pq.write_table(pa.table({"v": [number]}), tmp_path / "p" / f"k={value}" / "0.parquet")
        (tmp_path / "c" / f"k={value}" / "0.csv").write_text(f"{number}\n")
    with conf(spark, {"spark.sql.session.timeZone": zone}):
        for kind in ("timestamp", "timestamp_ntz"):
            for reader, folder in ((spark.read.format("parquet"), "p"), (spark.read.format("csv"), "c")):
                frame = reader.schema(f"v bigint, k {kind}").load(str(tmp_path / folder))
                assert_same_rows(spark, frame)
                assert_same_rows(spark, frame.where("k > timestamp'2024-03-10 02:45:00'"))
                assert_same_rows(spark, frame.groupBy("k").count())
        assert_same_rows(spark, spark.read.parquet(str(tmp_path / "p")))


def test_bucketed_tables(distributed: SparkSession) -> None:
    spark = distributed
    for name, buckets in (("four", 4), ("eight", 8)):
        frame = spark.range(300).selectExpr("id % 50 k", "id v", "id % 7 s")
        frame.write.bucketBy(buckets, "k").sortBy("v").saveAsTable(name)
    try:
        with conf(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
            for query in (
                "SELECT k, sum(v) FROM four GROUP BY k",
                "SELECT four.k, count(*) FROM four JOIN four b ON four.k = b.k GROUP BY four.k",
                "SELECT four.k, count(*) FROM four JOIN eight ON four.k = eight.k GROUP BY four.k",
                "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) FROM eight WHERE k IN (7, 8)",
            ):
                assert "SelectedBucketsCount" in spark.sql(query)._jdf.queryExecution().toString()
                # The oracle's own settings would not use the buckets.
                assert_same_rows(spark, spark.sql(query))
        with conf(spark, {"spark.sql.legacy.bucketedTableScan.outputOrdering": "true"}):
            assert_same_rows(spark, spark.sql("SELECT k, sum(v) FROM four GROUP BY k"), native=False)
    finally:
        for name in ("four", "eight"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_filters_on_floats(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's Parquet library would lose NaN and -0.0 by statistics, dictionaries and bloom filters."""
    values = pa.array([1.0, -0.0, float("nan"), None])
    for name, options in (("plain", {}), ("bloom", {"bloom_filter_options": {"v": True}})):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"v": values}), path, write_page_index=True, **options)
        with conf(spark, {"spark.sql.parquet.filterPushdown": "false"}):
            for condition in ("v = 0.0D", "v > 5", "v = double('nan')", "v IN (0.0D, 7)"):
                rows = assert_same_rows(spark, spark.read.parquet(str(path)).where(condition))
                assert rows.num_rows == 1, condition


def test_unsigned_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads them as the next wider type, whose statistics have another order."""
    kinds = {"a": pa.uint8(), "b": pa.uint16(), "c": pa.uint32(), "e": pa.uint64()}
    columns = {
        name: pa.array([0, 2**kind.bit_width - 1, None, 2 ** (kind.bit_width - 1)], kind)
        for name, kind in kinds.items()
    }
    lists = pa.array([[1, 255], None, [], [200]], pa.list_(pa.uint8()))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({**columns, "l": lists}), path, row_group_size=1, write_page_index=True)
    spark.read.parquet(str(path)).createOrReplaceTempView("unsigned")
    for query in (
        "SELECT * FROM unsigned",
        "SELECT min(a), max(b), min(c), max(e), sum(e) FROM unsigned",
        "SELECT a FROM unsigned WHERE a > 100",
        "SELECT c FROM unsigned WHERE c = 2147483648 OR b > 40000",
        "SELECT e FROM unsigned WHERE e > 9223372036854775807",
    ):
        assert_same_rows(spark, query)
    # Spark refuses or converts these.
    for kind in ("tinyint", "int", "double"):
        frame = spark.read.schema(f"a {kind}").parquet(str(path))
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(frame)
        assert outcome(frame) == expected, kind


def test_columns_of_no_type(spark: SparkSession, tmp_path: Path) -> None:
    """As pandas writes columns in which every value is missing."""
    pq.write_table(pa.table({"n": pa.nulls(2), "s": ["a", "b"]}), tmp_path / "a.parquet")
    assert_same_rows(spark, spark.read.parquet(str(tmp_path)))
    assert_same_rows(spark, spark.read.parquet(str(tmp_path)).where("n IS NULL").select("s"))


def test_orders_that_footers_claim(spark: SparkSession, tmp_path: Path) -> None:
    """Spark does not look at them, and no writer checks them."""
    table = pa.table({"a": [3, 1, None, 2, 1], "s": ["b", "a", "c", None, "a"]})
    claimed = [pq.SortingColumn(0), pq.SortingColumn(1)]
    pq.write_table(table, tmp_path / "1.parquet", sorting_columns=claimed)
    spark.read.schema("a bigint, s string").parquet(str(tmp_path)).createOrReplaceTempView("claimed")
    assert_same_rows(spark, "select * from claimed order by a nulls last, s nulls last", ordered=True)
    assert_same_rows(spark, "select a, count(*) from claimed group by a")
    assert_same_rows(spark, "select a, row_number() over (partition by a order by s) from claimed")


@pytest.mark.parametrize("query", ["s > 'zz'", "s <= 'b'", "s in ('é', 'x')", "s like 'a%' and n < 3"])
def test_statistics_of_old_writers(spark: SparkSession, tmp_path: Path, query: str) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(
        pa.table({"s": ["a", "z", "é"], "n": [1, 2, 3]}), path, write_page_index=False, store_schema=False
    )
    path.write_bytes(_with_old_statistics(path.read_bytes(), "a", "é", "z"))
    assert_same_rows(spark, spark.read.schema("s string, n bigint").parquet(str(tmp_path)).where(query))


def _with_old_statistics(file: bytes, least: str, greatest: str, greatest_ascii: str) -> bytes:
    """The file as Spark 2.3 wrote it: bytes were compared with their signs, so text beyond ASCII came first.

    Its statistics are the fields 1 to 3 of a struct in Thrift's compact form; newer ones are 5 to 8.
    """
    size = int.from_bytes(file[-8:-4], "little")
    body, footer = file[: -8 - size], file[-8 - size : -8]
    low, high, top = (value.encode() for value in (least, greatest, greatest_ascii))
    new = b"\x36\x00\x28%c%b\x18%c%b\x11\x11\x00" % (len(high), high, len(low), low)
    old = b"\x18%c%b\x18%c%b\x16\x00\x00" % (len(top), top, len(high), high)
    assert footer.count(new) == 1
    footer = footer.replace(new, old)
    writer = f"parquet-cpp-arrow version {pa.__version__}".encode()
    footer = footer.replace(writer, b"parquet-mr version 1.8.3".ljust(len(writer)))
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_instants_read_as_local_times(spark: SparkSession, tmp_path: Path) -> None:
    kinds = [pa.field("instant", pa.timestamp("us")), pa.field("local", pa.timestamp("us"))]
    table = pa.table({"s": pa.array([{"instant": 0, "local": 1}], pa.struct(kinds))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    ntz = spark.read.schema("s struct<instant: timestamp, local: timestamp_ntz>").parquet(str(tmp_path))
    assert_same_rows(spark, ntz, native=False)
