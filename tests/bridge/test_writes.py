# SPDX-License-Identifier: Apache-2.0
"""Native writes: plain Spark reads back what plain Spark would have written, in every mode and with every option."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

import volley
from volley.bridge.commit import Staging, exchange
from volley.cluster import LocalCluster
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.worker.files import Written

slow = pytest.mark.slow

PLAIN = {"spark.volley.enabled": "false"}

EVERY_TYPE = """
    select cast(id as tinyint) as b, cast(id * 300 as smallint) as s, cast(id * 70000 as int) as i, id as l,
           cast(id / 3 as float) as f, if(id % 4 = 0, double('nan'), id / -7) as d,
           cast(id * 1.5 as decimal(7, 2)) as small, cast(id as decimal(18, 5)) as middle,
           cast(id * -1.25 as decimal(38, 10)) as wide, id % 2 = 0 as flag,
           if(id % 5 = 0, null, concat('name ', id, ' ü')) as name, encode(cast(id as string), 'utf-8') as raw,
           date_add(date'1581-12-30', cast(id * 9000 as int)) as day,
           timestamp'1899-12-31 23:59:59.123456' + make_dt_interval(cast(id * 3000 as int)) as moment,
           array(cast(id as int), null) as list, named_struct('x', id, 'y', array(cast(id as string))) as pair
    from range(40)
"""

# Names that Spark escapes, an empty one, none, and others that it leaves alone.
AWKWARD = "array('a/b', 'x=y', '', null, 'ü %', 'plain', 'q?*:#', '{[]}^', 'tab\\t', 'ends. ')"


def both(
    spark: SparkSession, directory: Path, write: Callable[[DataFrameWriter, str], Any], *frames: DataFrame
) -> None:
    """Write the frames one after the other on both engines; what Spark reads back, and the footers, must be equal."""
    for name, settings in (("spark", PLAIN), ("volley", {})):
        with conf(spark, settings):
            for frame in frames:
                write(frame.write, str(directory / name))
                if name == "volley":
                    assert_native(spark)
    assert_same_tables(spark, directory / "spark", directory / "volley")


def stored(spark: SparkSession, text: str, path: Path) -> DataFrame:
    """The rows of a query from files that Spark wrote."""
    with conf(spark, PLAIN):
        spark.sql(text).repartition(4).write.parquet(str(path))
    return spark.read.parquet(str(path))


def assert_native(spark: SparkSession) -> None:
    report = volley.last_query(spark)
    assert report is not None
    assert (report.engine, report.spark_tasks, [str(reason) for reason in report.reasons]) == (
        "native",
        0,
        [],
    )


def assert_same_tables(spark: SparkSession, expected: Path, actual: Path) -> None:
    assert folders(actual) == folders(expected)
    with conf(spark, PLAIN):
        one, two = (
            spark.read.parquet(str(path)) if parquet_files(path) else None for path in (expected, actual)
        )
        if one is None or two is None:
            assert one is two
            return
        assert two.schema == one.schema
        columns = [F.to_json(F.struct("*")).alias("row")]
        assert sorted(two.select(columns).collect()) == sorted(one.select(columns).collect())
    assert footer(actual) == footer(expected)
    hidden = [path.name for path in actual.rglob(".*") if path.name.startswith(".volley")]
    assert not hidden
    assert not [path for path in actual.parent.iterdir() if path.name.startswith(".volley")]


def folders(table: Path) -> list[str]:
    """Folders and marks, not the data files, whose number is each engine's own business."""
    found = (path.relative_to(table) for path in table.rglob("*") if not path.name.startswith((".", "part-")))
    return sorted(map(str, found))


def parquet_files(table: Path) -> list[Path]:
    return sorted(table.rglob("part-*.parquet"))


def footer(table: Path) -> tuple[str, dict[bytes, bytes], set[str], set[str]]:
    """Of any file: the Parquet schema, Spark's metadata, codecs; and how file names end."""
    files = parquet_files(table)
    metadata = pq.read_metadata(files[0])
    codecs = {
        metadata.row_group(group).column(column).compression
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    }
    schema = str(metadata.schema).split("\n", 2)[2]
    return schema, metadata.metadata, codecs, {file.name[len("part-00000-") + 36 :] for file in files}


@pytest.fixture(scope="module")
def source(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("writes") / "source"
    text = f"select id, {AWKWARD}[id % 10] as name, id % 3 = 0 as flag, id % 7 as day from range(100)"
    with conf(spark_session, PLAIN):
        spark_session.sql(text).repartition(4).write.parquet(str(path))
    return str(path)


@pytest.fixture
def rows(spark: SparkSession, source: str) -> DataFrame:
    return spark.read.parquet(source)


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=slow), "3"])
def test_every_type(spark: SparkSession, tmp_path: Path, workers: str) -> None:
    source = stored(spark, EVERY_TYPE, tmp_path / "source")
    with conf(spark, {"spark.volley.local.workers": workers}):
        both(spark, tmp_path / "all", lambda writer, path: writer.parquet(path), source)
    rows = spark.read.parquet(str(tmp_path / "all" / "volley"))
    with conf(spark, PLAIN):
        assert rows.count() == 40


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_timestamps(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    text = "select timestamp_micros(id * 1234567890123) as t from range(-2000, 2000)"
    frame = stored(spark, text, tmp_path / "source")
    with conf(spark, {"spark.sql.parquet.outputTimestampType": kind}):
        both(spark, tmp_path, lambda writer, path: writer.parquet(path), frame)


@pytest.mark.parametrize(
    "codec", ["zstd", *(pytest.param(c, marks=slow) for c in ("none", "gzip", "lz4_raw"))]
)
def test_codecs(spark: SparkSession, tmp_path: Path, rows: DataFrame, codec: str) -> None:
    both(spark, tmp_path / "option", lambda writer, path: writer.parquet(path, compression=codec), rows)
    with conf(spark, {"spark.sql.parquet.compression.codec": codec}):
        both(spark, tmp_path / "setting", lambda writer, path: writer.save(path, "parquet"), rows)


MODES: dict[str, Callable[[DataFrameWriter, str], Any]] = {
    "append": lambda writer, path: writer.mode("append").parquet(path),
    "overwrite": lambda writer, path: writer.mode("overwrite").parquet(path),
    "append to folders": lambda writer, path: writer.parquet(path, "append", "name"),
    "overwrite folders": lambda writer, path: writer.parquet(path, "overwrite", ["name", "flag"]),
    "overwrite some folders": lambda writer, path: (
        writer.option("partitionOverwriteMode", "dynamic")
        .partitionBy("day", "name")
        .mode("overwrite")
        .parquet(path)
    ),
    "save": lambda writer, path: writer.format("parquet").mode("append").option("path", path).save(),
}


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=slow)])
def test_modes(spark: SparkSession, tmp_path: Path, rows: DataFrame, mode: str, workers: str) -> None:
    with conf(spark, {"spark.volley.local.workers": workers}):
        both(
            spark,
            tmp_path,
            MODES[mode],
            rows,
            rows.where("day in (1, 2)").withColumn("id", F.col("id") + 1000),
        )


def test_other_partition_types(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "select id, date_add(date'2024-02-27', cast(id % 3 as int)) as day, cast(id % 2 as decimal(10, 2)) as amount,"
        " id % 2 = 0 as flag, cast(if(id % 5 = 0, null, id % 5) as smallint) as small from range(60)"
    )
    both(
        spark, tmp_path, lambda w, path: w.partitionBy("small", "day", "amount", "flag").parquet(path), frame
    )


def test_names_of_columns_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("select id as `A b`, id as `ü,=;`, id % 2 as `P x` from range(6)")
    both(spark, tmp_path, lambda writer, path: writer.partitionBy("p X").parquet(path), frame)


def test_nothing_to_write(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    none = rows.where("id < 0")
    both(spark, tmp_path / "plain", lambda writer, path: writer.parquet(path), none)
    both(spark, tmp_path / "folders", lambda writer, path: writer.partitionBy("name").parquet(path), none)
    both(spark, tmp_path / "gone", lambda writer, path: writer.mode("overwrite").parquet(path), rows, none)


def test_many_files(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    limited = rows.coalesce(1)
    both(spark, tmp_path / "a", lambda w, path: w.option("maxRecordsPerFile", 30).parquet(path), limited)
    for engine in ("spark", "volley"):
        counts = [pq.read_metadata(file).num_rows for file in parquet_files(tmp_path / "a" / engine)]
        assert sorted(counts) == [10, 30, 30, 30]
    with conf(spark, {"spark.sql.files.maxRecordsPerFile": "7"}):
        # One task again: how many files a folder gets depends on how its rows are spread.
        both(spark, tmp_path / "b", lambda w, path: w.partitionBy("day").parquet(path), limited)
    counts = [pq.read_metadata(file).num_rows for file in parquet_files(tmp_path / "b" / "volley")]
    assert max(counts) <= 7


@pytest.mark.usefixtures("distributed")
def test_coalesce_makes_one_file(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    spark.conf.set("spark.volley.local.workers", "3")
    for number, frame in enumerate((rows.coalesce(1), rows.repartition(1))):
        both(spark, tmp_path / str(number), lambda writer, path: writer.parquet(path), frame)
        assert len(parquet_files(tmp_path / str(number) / "volley")) == 1


def test_an_order_is_kept(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    rows.orderBy(F.desc("id")).write.parquet(str(tmp_path / "t"))
    assert_native(spark)
    ids = [id for file in parquet_files(tmp_path / "t") for id in pq.read_table(file)["id"].to_pylist()]
    assert ids == list(range(99, -1, -1))


def test_existing_paths_are_left_to_spark(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = str(tmp_path / "t")
    rows.write.parquet(path)
    before = parquet_files(tmp_path / "t")
    with conf(spark, {"spark.volley.fallback": "error"}):
        with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
            rows.write.parquet(path)
        rows.write.mode("ignore").parquet(path)
    assert parquet_files(tmp_path / "t") == before


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda rows, path: rows.write.format("json").save(path), "FILE_FORMAT_NOT_SUPPORTED"),
        (lambda rows, path: rows.write.option("parquet.block.size", "1000000").parquet(path), "FILE_OPTION"),
        (lambda rows, path: rows.write.parquet(path, compression="lz4"), "FILE_OPTION_NOT_SUPPORTED"),
        (lambda rows, path: rows.write.format("noop").mode("append").save(), "ACTION_NOT_SUPPORTED"),
        (
            lambda rows, path: rows.selectExpr("id", "id / 7 as p").write.partitionBy("p").parquet(path),
            "CAST",
        ),
    ],
)
def test_what_spark_writes(
    spark: SparkSession, tmp_path: Path, rows: DataFrame, write: Callable[..., None], reason: str
) -> None:
    write(rows, str(tmp_path / "t"))
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert reason in str(report.reasons[0])


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = tmp_path / "t"
    rows.write.parquet(str(path))
    before = parquet_files(path)
    broken = rows.selectExpr("id", "id / if(id = 77, 0, 1) as q", "name")
    with conf(spark, {"spark.sql.ansi.enabled": "true"}), pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        broken.write.mode("append").parquet(str(path))
    assert parquet_files(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_tables_without_partitions(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    for name in ("spark_t", "volley_t"):
        spark.sql(f"create table {name} (id int, name string, flag boolean, day decimal(5, 1)) using parquet")
    try:
        for name, settings in (("spark_t", PLAIN), ("volley_t", {})):
            with conf(spark, settings):
                for overwrite in (False, True, False):
                    rows.write.insertInto(name, overwrite)
                    if not settings:
                        assert_native(spark)
        with conf(spark, PLAIN):
            expected, actual = (
                sorted(spark.table(name).collect(), key=str) for name in ("spark_t", "volley_t")
            )
            assert len(actual) == 200
            assert actual == expected
    finally:
        for name in ("spark_t", "volley_t"):
            spark.sql(f"drop table {name}")


@pytest.mark.parametrize("overwrite_mode", ["static", pytest.param("dynamic", marks=slow)])
def test_tables_with_partitions(
    spark: SparkSession, tmp_path: Path, rows: DataFrame, overwrite_mode: str
) -> None:
    """The catalog keeps a list of the partitions of these: both engines must leave the same one behind."""
    names = ("spark_p", "volley_p")
    for name in names:
        spark.sql(
            f"create table {name} (id long, day long, name string) using parquet partitioned by (day, name)"
        )
    try:
        with conf(spark, {"spark.sql.sources.partitionOverwriteMode": overwrite_mode}):
            for name, settings in (("spark_p", PLAIN), ("volley_p", {})):
                with conf(spark, settings):
                    rows.select("id", "day", "name").write.insertInto(name)
                    rows.where("day < 3").selectExpr("id + 1000", "day", "name").write.insertInto(name, True)
                    if not settings:
                        assert_native(spark)
        with conf(spark, PLAIN):
            known, found = (
                [sorted(spark.sql(text + name).collect(), key=str) for name in names]
                for text in ("show partitions ", "from ")
            )
            assert known[0] == known[1]
            assert found[0] == found[1]
            assert len(found[0]) == (44 if overwrite_mode == "static" else 100)
    finally:
        for name in names:
            spark.sql(f"drop table {name}")


def test_insert_statements(spark: SparkSession, rows: DataFrame) -> None:
    """The text of an INSERT is seen too, with the partitions that it names."""
    rows.createOrReplaceTempView("inserted")
    names = ("spark_i", "volley_i")
    texts = (
        "insert into {} select id, day, name from inserted",
        "insert overwrite {} partition (day = 3, name) select id + 1000, name from inserted where day = 3",
        "insert into {} partition (day = 50, name = 'x/y') select id from inserted where id < 5",
        "INSERT OVERWRITE {} PARTITION (day = 1, name = 'plain') SELECT id FROM inserted WHERE id < 0",
    )
    for name in names:
        spark.sql(
            f"create table {name} (id long, day long, name string) using parquet partitioned by (day, name)"
        )
    try:
        for name, settings in (("spark_i", PLAIN), ("volley_i", {})):
            with conf(spark, settings):
                for text in texts:
                    answer = spark.sql(text.format(name))
                    if not settings:
                        assert_native(spark)
                    assert (answer.columns, answer.collect()) == ([], [])
        with conf(spark, PLAIN):
            for text in ("show partitions ", "from "):
                expected, actual = (sorted(spark.sql(text + name).collect(), key=str) for name in names)
                assert actual == expected
    finally:
        for name in names:
            spark.sql(f"drop table {name}")


def make_tables(
    spark: SparkSession, make: Callable[[str], Any], native: Callable[[SparkSession], None]
) -> None:
    """Make a table on each engine; what Spark's catalog says of both, and their rows, must be equal. They go again."""
    names = ("made_by_spark", "made_by_volley")
    try:
        for name, settings in zip(names, (PLAIN, {}), strict=True):
            with conf(spark, settings):
                make(name)
                if not settings:
                    native(spark)
        with conf(spark, PLAIN):
            expected, actual = (described(spark, name) for name in names)
            assert actual == expected
            columns = [F.to_json(F.struct("*")).alias("row")]
            expected_rows, rows = (sorted(spark.table(name).select(columns).collect()) for name in names)
            assert rows == expected_rows
    finally:
        for name in names:
            spark.sql(f"drop table if exists {name}")


def described(spark: SparkSession, name: str) -> list[str]:
    """What the catalog knows of a table, without what differs from table to table."""
    own = ("Table", "Location", "Created Time", "Last Access", "Statistics", "Partition Statistics")
    rows = spark.sql(f"describe table extended {name}").collect()
    texts = [f"{row.col_name}: {row.data_type}, {row.comment}" for row in rows if row.col_name not in own]
    if "# Partition Information: , " in texts:
        texts += [row.partition for row in spark.sql(f"show partitions {name}").collect()]
    return texts


@pytest.mark.parametrize("partitions", [(), ("day", "name")])
def test_save_as_table(spark: SparkSession, rows: DataFrame, partitions: tuple[str, ...]) -> None:
    def make(name: str) -> None:
        rows.select("day", "name", "id", "flag").write.saveAsTable(name, partitionBy=list(partitions) or None)

    make_tables(spark, make, assert_native)


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore", "error"])
@pytest.mark.parametrize("overwrite_mode", ["static", pytest.param("dynamic", marks=slow)])
def test_modes_of_save_as_table(spark: SparkSession, rows: DataFrame, mode: str, overwrite_mode: str) -> None:
    """Onto a table that is there: columns are found by name, and a table that is replaced may change its columns."""

    def make(name: str) -> None:
        rows.select("id", "day", "flag").write.partitionBy("day").saveAsTable(name)
        more = rows.where("day < 2").select("flag", "day", "id")
        if mode == "overwrite":
            more = more.withColumn("more", F.lit("x"))
        writer = more.write.mode(mode).partitionBy("day")
        if mode == "error":
            with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
                writer.saveAsTable(name)
        else:
            writer.saveAsTable(name)

    def native(spark: SparkSession) -> None:
        if mode in ("append", "overwrite"):
            assert_native(spark)

    with conf(spark, {"spark.sql.sources.partitionOverwriteMode": overwrite_mode}):
        make_tables(spark, make, native)


@pytest.mark.parametrize(
    "text",
    [
        "create table {} as select id, name, day + 0.5 as half from made where id > 3",
        "-- a remark\nCREATE TABLE if not exists {} USING parquet PARTITIONED BY (day) COMMENT 'kept' "
        "OPTIONS (compression 'zstd') AS SELECT day, id FROM made",
        "create table {} using parquet as with few as (select * from made where id < 9) select * from few",
    ],
)
def test_create_table_as(spark: SparkSession, rows: DataFrame, text: str) -> None:
    rows.createOrReplaceTempView("made")

    def make(name: str) -> None:
        assert spark.sql(text.format(name)).columns == []

    def native(spark: SparkSession) -> None:
        assert_native(spark)
        if "if not exists" in text:
            make("made_by_volley")
            report = volley.last_query(spark)
            assert report is not None
            assert (report.action, report.engine) == ("createTable", "spark")
            assert "nothing to write" in str(report.reasons[0])

    make_tables(spark, make, native)


def test_with_before_insert(spark: SparkSession, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("made")

    def make(name: str) -> None:
        spark.sql(f"create table {name} (id long, name string) using parquet")
        spark.sql(
            f"with few as (select id, name from made where id < 9) insert into {name} select * from few"
        )

    make_tables(spark, make, assert_native)


def test_external_tables(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    def make(name: str) -> None:
        rows.write.option("path", str(tmp_path / name)).saveAsTable(name)

    make_tables(spark, make, assert_native)
    assert_same_tables(spark, tmp_path / "made_by_spark", tmp_path / "made_by_volley")


def test_a_table_is_not_replaced_by_what_it_holds(spark: SparkSession, rows: DataFrame) -> None:
    def make(name: str) -> None:
        rows.write.saveAsTable(name)
        with pytest.raises(AnalysisException, match="UNSUPPORTED_OVERWRITE"):
            spark.table(name).where("id > 5").write.mode("overwrite").saveAsTable(name)

    make_tables(spark, make, lambda spark: None)


def test_tables_that_spark_makes(spark: SparkSession, rows: DataFrame) -> None:
    for write, reason in (
        (rows.write.format("json"), "FILE_FORMAT_NOT_SUPPORTED"),
        (rows.write.bucketBy(2, "id"), "FILE_OPTION_NOT_SUPPORTED"),
    ):
        write.saveAsTable("saved_t")
        try:
            report = volley.last_query(spark)
            assert report is not None
            assert (report.action, report.engine) == ("saveAsTable", "spark")
            assert reason in str(report.reasons[0])
            assert spark.table("saved_t").count() == 100
        finally:
            spark.sql("drop table saved_t")


def test_a_cached_table_sees_new_rows(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    path = str(tmp_path / "t")
    rows.write.parquet(path)
    cached = spark.read.parquet(path).cache()
    try:
        assert cached.count() == 100
        rows.write.mode("append").parquet(path)
        assert_native(spark)
        assert spark.read.parquet(path).count() == 200
    finally:
        cached.unpersist()


def test_a_killed_write_leaves_the_old_rows(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    """The process is killed when all files are written and nothing is committed; the next write tidies up."""
    path = tmp_path / "t"
    rows.write.parquet(str(path))
    program = """
        import os, signal, sys
        from pathlib import Path
        from volley.bridge.commit import Staging
        with Staging(Path(sys.argv[1]), True) as staging:
            (staging.tasks / "x.parquet").write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], timeout=60, check=False)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".volley-t-")]
    with conf(spark, PLAIN):
        assert spark.read.parquet(str(path)).count() == 100
    rows.limit(3).write.mode("overwrite").parquet(str(path))
    assert_native(spark)
    with conf(spark, PLAIN):
        assert spark.read.parquet(str(path)).count() == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


def test_workers_write(spark: SparkSession, tmp_path: Path, rows: DataFrame, cluster: LocalCluster) -> None:
    """Daemons write their shares themselves; none of the rows passes the driver."""
    with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
        by_name = rows.groupBy("day", "name").agg(F.sum("id").alias("total"))
        both(spark, tmp_path, lambda writer, path: writer.partitionBy("day").parquet(path), by_name)
        report = volley.last_query(spark)
        assert report is not None
        assert report.rows == 70


@slow
def test_a_killed_worker_writes_nothing_twice(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    many = rows.crossJoin(rows.select(F.col("id").alias("other"))).crossJoin(
        rows.select(F.col("id").alias("third"))
    )
    with LocalCluster(3) as cluster, conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
        try:
            killer = threading.Timer(0.5, cluster.members[0].process.kill)
            killer.start()
            many.write.partitionBy("day").parquet(str(tmp_path / "t"))
            killer.join()
            assert_native(spark)
        finally:
            close_fleets()
    with conf(spark, PLAIN):
        written = spark.read.parquet(str(tmp_path / "t"))
        assert written.count() == written.select("id", "other", "third").distinct().count() == 1_000_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


@slow
def test_killing_the_program_at_any_moment(spark: SparkSession, tmp_path: Path, source: str) -> None:
    """A program that overwrites a table again and again is killed; the table always is one of its versions."""
    path = tmp_path / "t"
    program = """
        import sys
        from pyspark.sql import SparkSession, functions as F
        import volley
        spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
                 .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
                 .config("spark.log.level", "ERROR").getOrCreate())
        volley.enable(spark)
        rows = spark.read.parquet(sys.argv[1])
        for version in range(1000):
            written = rows.withColumn("version", F.lit(version))
            written.write.mode("overwrite").partitionBy("day").parquet(sys.argv[2])
            assert volley.last_query(spark).native
            print(version, flush=True)
    """
    chance = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), source, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            for _ in range(3):
                assert process.stdout.readline()
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.4))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        with conf(spark, PLAIN):
            table = spark.read.parquet(str(path))
            assert table.count() == 100
            assert table.select("version").distinct().count() == 1


class TestStaging:
    """The commit itself, on plain files."""

    def written(self, staging: Staging, *names: str) -> list[Written]:
        files = []
        for number, name in enumerate(names):
            path = staging.tasks / f"0-{number}-000.parquet"
            path.write_text(name)
            files.append(Written(str(path), name, 1, 1))
        return files

    def test_a_living_write_is_not_tidied_up(self, tmp_path: Path) -> None:
        with Staging(tmp_path / "t", True) as first, Staging(tmp_path / "t", True):
            assert first.tasks.exists()

    def test_nothing_shows_before_the_commit(self, tmp_path: Path) -> None:
        with Staging(tmp_path / "t", False) as staging:
            self.written(staging, "a=1")
            assert not (tmp_path / "t").exists()
        assert not list(tmp_path.iterdir())

    def test_replacing_a_folder_takes_its_old_files(self, tmp_path: Path) -> None:
        for name in ("a=1", "a=2"):
            (tmp_path / "t" / name).mkdir(parents=True)
            (tmp_path / "t" / name / "old").touch()
        with Staging(tmp_path / "t", False) as staging:
            staging.commit(self.written(staging, "a=1", "a=3"), ".parquet", ["a=1", "a=3"], False)
        found = sorted(path.parent.name for path in (tmp_path / "t").rglob("part-*"))
        assert found == ["a=1", "a=3"]
        assert [path.parent.name for path in (tmp_path / "t").rglob("old")] == ["a=2"]

    def test_a_table_is_exchanged_in_one_step(self, tmp_path: Path) -> None:
        for name in ("new", "old"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).touch()
        inode = (tmp_path / "new").stat().st_ino
        exchange(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old").stat().st_ino == inode
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["old"]


def test_the_footer_of_arrow_is_not_written(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    rows.write.parquet(str(tmp_path / "t"))
    (file, *_) = parquet_files(tmp_path / "t")
    assert b"ARROW:schema" not in (pq.read_metadata(file).metadata or {})
    assert isinstance(pq.read_schema(file), pa.Schema)
