# SPDX-License-Identifier: Apache-2.0
"""Files of object stores: Spark's rows, read natively, whatever the store does; and secrets that nobody sees."""

from __future__ import annotations

import datetime
import logging
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from helpers.sampling import every
from volley.cluster import LocalCluster
from volley.errors import FallbackError
from volley.formats.remote_parquet import remote_footer
from volley.lower.sessions import drop_caches
from volley.plan.nodes import DataFile
from volley.storage.objects import SMALL_BYTES
from volley.testing.http_faults import Fault, Request, faulty_proxy
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.s3 import KEYS, Bucket
from volley.testing.s3a import S3a
from volley.testing.session import conf

ROWS = """SELECT id AS n, CAST(id % 100 AS TINYINT) AS b, CAST(id AS INT) AS i, id % 3 = 0 AS t, id / 7 AS d,
CAST(id AS DECIMAL(20, 3)) AS x, CONCAT('é', id) AS s, IF(id % 5 = 0, NULL, CAST(id AS STRING)) AS maybe,
DATE_ADD(DATE'1999-12-31', CAST(id AS INT)) AS day, TIMESTAMP_SECONDS(id * 1000003 - 2000000000) AS at,
NAMED_STRUCT('a', id, 'b', CAST(id AS STRING)) AS st, ARRAY(id, id + 1) AS list, MAP(CAST(id AS STRING), id) AS m,
MAKE_DT_INTERVAL(0, 0, 0, id) AS span, CAST(id % 4 AS INT) AS p
FROM range(20000)"""


@pytest.fixture(scope="module")
def table(
    spark_session: SparkSession, s3a: S3a, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """A partitioned Parquet table, some of whose row groups are larger than what is read whole."""
    folder = tmp_path_factory.mktemp("table")
    rows = spark_session.sql(ROWS).repartition(2)
    rows.write.partitionBy("p").mode("overwrite").parquet(str(folder))
    bucket.upload(folder, "table")
    return s3a.url("table")


def test_parquet(spark: SparkSession, table: str) -> None:
    spark.read.parquet(table).createOrReplaceTempView("o")
    assert_same_rows(spark, "SELECT * FROM o")
    assert_same_rows(spark, "SELECT count(*), sum(n), max(s), min(at) FROM o WHERE p > 1 AND n < 500")
    assert_same_rows(spark, "SELECT p, count(maybe), sum(x), max(st.b) FROM o GROUP BY p ORDER BY p")
    assert_same_rows(spark, "SELECT count(*) FROM o")
    assert_same_rows(
        spark, "SELECT a.s, b.n FROM o a JOIN o b ON a.n = b.n + 1 WHERE a.day < DATE'2000-03-01' ORDER BY 2"
    )
    columns = ("n", "input_file_name()", "_metadata.file_path", "_metadata.file_modification_time")
    assert_same_rows(spark, lambda session: session.read.parquet(table).where("n < 10").selectExpr(*columns))
    with conf(spark, {"spark.sql.sources.useV1SourceList": ""}):
        assert_same_rows(spark, lambda session: session.read.parquet(table).where("n = 77"))


def test_other_formats(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    rows = spark.sql("SELECT id, CONCAT('a', id) AS s, id / 2 AS d FROM range(30)").coalesce(1)
    kinds = ("csv", "json", "orc", "org.apache.spark.sql.avro.AvroFileFormat")
    for kind in kinds:
        rows.write.format(kind).save(str(tmp_path / kind))
    rows.select("s").write.text(str(tmp_path / "text"), compression="gzip")
    bucket.upload(tmp_path, "formats")
    schema = "id bigint, s string, d double"
    for kind in kinds:
        where = s3a.url(f"formats/{kind}")
        assert_same_rows(spark, spark.read.schema(schema).format(kind).load(where))
    assert_same_rows(spark, lambda session: session.read.text(s3a.url("formats/text")))
    assert_same_rows(spark, lambda session: session.read.format("binaryFile").load(s3a.url("formats/text")))


def test_names_of_objects(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), file)
    for name in ("a b", "100%", "é+ü", "x=1&y", "q?#"):
        bucket.upload(file, f"names/{name}/part 1.parquet")
    assert_same_rows(
        spark,
        lambda session: (
            session.read.option("recursiveFileLookup", "true")
            .parquet(s3a.url("names"))
            .selectExpr("a", "input_file_name()")
        ),
    )


def test_stored_types(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    """Columns that are missing, or stored in other types than the table has."""
    moment = datetime.datetime(1601, 2, 3, 4, 5, 6, 789000)
    pq.write_table(
        pa.table(
            {
                "i": pa.array([1, None], pa.int32()),
                "f": pa.array([1.5, None], pa.float32()),
                "x": pa.array([Decimal("1.20"), None], pa.decimal128(5, 2)),
                "at": pa.array([moment, None], pa.timestamp("ms", "UTC")),
                "s": pa.array(["a", None]).dictionary_encode(),
                "st": pa.array([{"a": 1, "b": "x"}, None]),
            }
        ),
        tmp_path / "1.parquet",
        version="2.6",
    )
    pq.write_table(
        pa.table({"at": pa.array([moment], pa.timestamp("us")), "s": ["b"]}),
        tmp_path / "2.parquet",
        use_deprecated_int96_timestamps=True,
    )
    bucket.upload(tmp_path, "types")
    schema = "i bigint, f double, x decimal(9, 3), at timestamp, s string, st struct<b: string>, none date"
    assert_same_rows(spark, lambda session: session.read.schema(schema).parquet(s3a.url("types")))
    # Text that is not UTF-8: Spark passes it on.
    broken = pa.table({"s": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())})
    pq.write_table(broken, tmp_path / "broken.parquet")
    bucket.upload(tmp_path / "broken.parquet", "broken/1.parquet")
    assert_same_rows(
        spark,
        lambda session: session.read.schema("s string").parquet(s3a.url("broken")).selectExpr("hex(s)"),
        native=False,
    )


def test_row_groups_are_pruned(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    numbers = pa.table({"n": range(200_000), "text": [f"{n * 7919:020}" for n in range(200_000)]})
    pq.write_table(numbers, tmp_path / "1.parquet", row_group_size=20_000, compression="none")
    bucket.upload(tmp_path, "pruned")
    frame = spark.read.parquet(s3a.url("pruned"))
    with faulty_proxy(bucket.port, lambda request: None) as proxy:
        with s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}):
            assert frame.where("n = 70001").toArrow().num_rows == 1
        assert volley.last_query(spark).engine == "native"  # type: ignore[union-attr]
        few = len(proxy.requests)
        with s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}):
            assert_same_rows(spark, frame.selectExpr("sum(n)", "max(text)"))
    assert few < (len(proxy.requests) - few) / 2


def test_footers_are_kept_until_memory_is_short(bucket: Bucket, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(400_000)}), tmp_path / "1.parquet", compression="none")
    bucket.upload(tmp_path, "footers")
    size_bytes = (tmp_path / "1.parquet").stat().st_size
    assert size_bytes > SMALL_BYTES
    with faulty_proxy(bucket.port, lambda request: None) as proxy:
        store = bucket.add_store(proxy.port).id
        file = DataFile(f"s3a://{bucket.name}/footers/1.parquet", size_bytes, 0, store=store)

        def count_reads() -> int:
            before = len(proxy.requests)
            remote_footer(file)
            return sum(request.reads_data for request in proxy.requests[before:])

        assert count_reads() > 0
        assert count_reads() == 0
        drop_caches()
        assert count_reads() > 0


# A request that is refused is not tried again.
FAULTS = [fault for fault in Fault if fault not in (Fault.DENIED, Fault.NO_UPLOAD)]


@pytest.mark.parametrize("fault", every(3, FAULTS, name=lambda fault: fault.name))
def test_faults(spark: SparkSession, s3a: S3a, bucket: Bucket, table: str, fault: Fault) -> None:
    """Every third request fails at first; what is read is the same."""
    spark.read.parquet(table).createOrReplaceTempView("o")

    def choose(request: Request) -> Fault | None:
        return fault if request.number % 3 == 0 else None

    with faulty_proxy(bucket.port, choose) as proxy:
        with s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}):
            assert_same_rows(spark, "SELECT count(*), sum(n), max(s) FROM o")
        assert proxy.injected > 0


def test_store_that_does_not_answer(spark: SparkSession, s3a: S3a, bucket: Bucket, table: str) -> None:
    """Spark, which has another way to the objects here, answers; without it the error says what happened."""
    frame = spark.read.parquet(table).groupBy().count()
    with (
        faulty_proxy(bucket.port, lambda request: Fault.BUSY) as proxy,
        s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}", "fs.s3a.attempts.maximum": "2"}),
    ):
        assert frame.toArrow().to_pylist() == [{"count": 20000}]
        report = volley.last_query(spark)
        assert report is not None
        assert [reason.reason for reason in report.reasons] == ["REPLAYED_ON_SPARK"]
        with conf(spark, {"spark.volley.fallback": "error"}), pytest.raises(FallbackError, match="table/p="):
            frame.toArrow()


def test_changed_objects(spark: SparkSession, s3a: S3a, bucket: Bucket, tmp_path: Path) -> None:
    """An object that is replaced while it is read, by one of the same size, gives no rows of both versions."""
    old, new = (tmp_path / f"{name}.parquet" for name in ("old", "new"))
    for path, sign in ((old, 1), (new, -1)):
        numbers = pa.array([sign * n for n in range(400_000)], pa.int64())
        pq.write_table(
            pa.table({"n": numbers}), path, row_group_size=100_000, compression="none", use_dictionary=False
        )
    assert old.stat().st_size == new.stat().st_size
    bucket.upload(old, "changed/1.parquet")
    bucket.upload(new, "next/1.parquet")
    frame = spark.read.parquet(s3a.url("changed"))
    files = bucket.file_system()
    replaced = threading.Event()

    def replace(request: Request) -> Fault | None:
        reads = [request for request in proxy.requests if request.reads_data]
        if len(reads) == 3 and not replaced.is_set():
            replaced.set()
            files.copy_file(f"{bucket.name}/next/1.parquet", f"{bucket.name}/changed/1.parquet")
        return None

    with faulty_proxy(bucket.port, replace) as proxy:
        settings = {"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}
        with (
            s3a.changed(settings),
            conf(spark, {"spark.volley.fallback": "error", "spark.volley.history.dir": "off"}),
            pytest.raises(FallbackError, match="changed"),
        ):
            frame.toArrow()
    assert replaced.is_set()
    # A new plan sees the new object.
    assert_same_rows(spark, lambda session: session.read.parquet(s3a.url("changed")).selectExpr("sum(n)"))


def test_reasons(spark: SparkSession, s3a: S3a, table: str) -> None:
    for settings, words in (
        ({"fs.s3a.proxy.host": "proxy"}, "fs.s3a.proxy.host"),
        ({"fs.s3a.encryption.algorithm": "SSE-C"}, "fs.s3a.encryption.algorithm"),
        ({"fs.s3a.something": "x"}, "fs.s3a.something"),
        ({"fs.s3a.aws.credentials.provider": "com.example.Mine"}, "com.example.Mine"),
        ({"hadoop.security.credential.provider.path": "jceks://file/x"}, "credential.provider.path"),
    ):
        with s3a.changed(settings):
            (reason,) = volley.explain(spark.read.parquet(table)).reasons
            assert reason.reason == "FILE_SYSTEM_NOT_SUPPORTED"
            assert words in str(reason)


def test_credentials_of_the_file_system(spark: SparkSession, s3a: S3a, table: str) -> None:
    """A provider that is code is asked through the file system, for each query anew."""
    changes: dict[str, str | None] = {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider",
        "fs.s3a.access.key": None,
        "fs.s3a.secret.key": None,
        "volley.test.credentials": ",".join(
            KEYS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        ),
    }
    with s3a.changed(changes):
        assert_same_rows(spark, lambda session: session.read.parquet(table).groupBy("p").count())
        with s3a.changed({"volley.test.credentials": "other,wrong-hush,token"}):
            assert spark.read.parquet(table).where("n > 1").count() == 19998
            report = volley.last_query(spark)
            assert report is not None
            assert [reason.reason for reason in report.reasons] == ["REPLAYED_ON_SPARK"]
            assert "hush" not in str(report.reasons)
    with s3a.changed({**changes, "volley.test.credentials": None}):
        (reason,) = volley.explain(spark.read.parquet(table)).reasons
        assert "AssumedRoleCredentialProvider" in str(reason)


def test_wrong_secrets(spark: SparkSession, s3a: S3a, table: str) -> None:
    """The store refuses them. Spark answers here, because its way to the objects needs none."""
    with s3a.changed({"fs.s3a.secret.key": "wrong-hush"}):
        assert spark.read.parquet(table).count() == 20000
    report = volley.last_query(spark)
    assert report is not None
    assert [reason.reason for reason in report.reasons] == ["REPLAYED_ON_SPARK"]
    assert "hush" not in str(report.reasons)


@pytest.mark.embedded
def test_workers(spark: SparkSession, cluster: LocalCluster, s3a: S3a, table: str) -> None:
    """Worker daemons get the credentials with the query."""
    with conf(spark, DISTRIBUTED_SETTINGS | cluster.settings | {"spark.volley.transport": "flight"}):
        spark.read.parquet(table).createOrReplaceTempView("o")
        assert_same_rows(spark, "SELECT p, count(*), sum(n), max(s) FROM o GROUP BY p ORDER BY p")


@pytest.mark.slow
@pytest.mark.embedded
def test_executors(spark: SparkSession, s3a: S3a, table: str) -> None:
    with conf(spark, DISTRIBUTED_SETTINGS | {"spark.volley.transport": "spark"}):
        spark.read.parquet(table).createOrReplaceTempView("o")
        assert_same_rows(spark, "SELECT p, count(*), sum(n), max(s) FROM o GROUP BY p ORDER BY p")


def test_secrets(
    spark: SparkSession,
    s3a: S3a,
    cluster: LocalCluster,
    table: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Secrets are in no log, even of py4j, in no report, explanation or history, and on no command line."""
    secret = KEYS["AWS_SECRET_ACCESS_KEY"]
    caplog.set_level(logging.DEBUG)
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        caplog.set_level(logging.DEBUG, name)
    history = tmp_path / "history"
    seen: list[str] = []
    for settings in ({}, DISTRIBUTED_SETTINGS | cluster.settings | {"spark.volley.transport": "flight"}):
        with conf(spark, settings | {"spark.volley.history.dir": str(history)}):
            frame = spark.read.parquet(table).groupBy("p").count()
            assert frame.toArrow().num_rows == 4
            report = volley.last_query(spark)
            assert report is not None
            assert report.engine == "native"
            seen += [repr(report), str(report), str(volley.explain(frame)), repr(volley.explain(frame))]
    seen += [record.getMessage() for record in caplog.records]
    seen += [path.read_text("latin-1") for path in history.rglob("*") if path.is_file()]
    if sys.platform == "linux":
        for file in (*Path("/proc").glob("[0-9]*/cmdline"),):
            try:
                seen.append(file.read_text("latin-1"))
            except OSError:
                continue
    assert not any(secret in text for text in seen)
