# SPDX-License-Identifier: Apache-2.0
"""Writes to object stores: files appear at the commit, once, and nothing is left behind."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import volley
from volley.bridge.upload_commit import UploadStaging
from volley.cluster import LocalCluster
from volley.errors import CommitError, FallbackError
from volley.storage.uploads import Upload, Uploads
from volley.testing.http_faults import Fault, Request, faulty_proxy
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.s3 import KEYS, Bucket
from volley.testing.s3a import S3a
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.worker.file_writer import Written


@pytest.fixture
def pending(bucket: Bucket) -> Callable[[], list[str]]:
    """The keys of uploads that are neither complete nor aborted."""
    boto3: Any = pytest.importorskip("boto3")
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{bucket.port}",
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    return lambda: [
        upload["Key"] for upload in s3.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    ]


def keys(bucket: Bucket, folder: str) -> list[str]:
    found = bucket.file_system().get_file_info(
        fs.FileSelector(f"{bucket.name}/{folder}", recursive=True, allow_not_found=True)
    )
    return sorted(info.path for info in found if info.type == fs.FileType.File)


def test_appends(
    spark: SparkSession, s3a: S3a, bucket: Bucket, pending: Callable[[], list[str]], tmp_path: Path
) -> None:
    rows = spark.sql("SELECT id AS n, CONCAT('a', id) AS s, CAST(id % 3 AS INT) AS p FROM range(1000)")
    url = s3a.url("written")
    for mode, count in (("errorifexists", 1000), ("append", 2000)):
        rows.write.mode(mode).partitionBy("p").parquet(url)
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "native"
        assert spark.read.parquet(url).count() == count
    # The same rows as Spark writes, in files as Spark names them.
    with conf(spark, {"spark.volley.enabled": "false"}):
        rows.write.partitionBy("p").parquet(str(tmp_path / "by spark"))
    expected = spark.read.parquet(str(tmp_path / "by spark"))
    written = spark.read.parquet(url).distinct()
    assert written.schema == expected.schema
    assert written.exceptAll(expected).count() == expected.exceptAll(written).count() == 0
    names = keys(bucket, "written")
    assert any("/p=2/part-00000-" in name and name.endswith(".snappy.parquet") for name in names)
    assert f"{bucket.name}/written/_SUCCESS" in names
    # No rows: one file tells the schema.
    rows.where("n < 0").write.json(s3a.url("nothing"))
    spark.range(0).write.parquet(s3a.url("empty"))
    assert spark.read.parquet(s3a.url("empty")).schema.names == ["id"]
    assert pending() == []


@pytest.mark.embedded
def test_workers_write(
    spark: SparkSession, cluster: LocalCluster, s3a: S3a, bucket: Bucket, pending: Callable[[], list[str]]
) -> None:
    """Worker daemons upload. Some requests of theirs fail at first."""

    def choose(request: Request) -> Fault | None:
        return Fault.BUSY if request.number % 5 == 0 else None

    settings = DISTRIBUTED_SETTINGS | cluster.settings | {"spark.volley.transport": "flight"}
    with (
        faulty_proxy(bucket.port, choose) as proxy,
        s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}),
        conf(spark, settings),
    ):
        spark.range(10_000).repartition(6).write.parquet(s3a.url("by workers"))
        assert volley.last_query(spark).engine == "native"  # type: ignore[union-attr]
    assert spark.read.parquet(s3a.url("by workers")).selectExpr("sum(id)", "count(*)").collect() == [
        (49_995_000, 10_000)
    ]
    assert pending() == []


@pytest.mark.slow
@pytest.mark.embedded
def test_killed_worker_uploads_nothing_twice(
    spark: SparkSession, s3a: S3a, bucket: Bucket, pending: Callable[[], list[str]]
) -> None:
    killed = threading.Event()
    with LocalCluster(3) as cluster:

        def kill(request: Request) -> Fault | None:
            if "partNumber=" in request.path and not killed.is_set():
                killed.set()
                cluster.members[0].process.kill()
            return None

        try:
            with (
                faulty_proxy(bucket.port, kill) as proxy,
                s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}"}),
                conf(spark, DISTRIBUTED_SETTINGS | cluster.settings),
            ):
                spark.range(100_000).repartition(6).write.parquet(s3a.url("killed"))
                assert volley.last_query(spark).engine == "native"  # type: ignore[union-attr]
        finally:
            close_fleets()
    assert killed.is_set()
    written = spark.read.parquet(s3a.url("killed"))
    assert written.count() == written.distinct().count() == 100_000
    assert pending() == []


def test_reasons_against_writes(spark: SparkSession, s3a: S3a) -> None:
    with (
        conf(spark, {"spark.volley.fallback": "error"}),
        s3a.changed({"fs.s3a.proxy.host": "proxy"}),
        pytest.raises(FallbackError, match=r"fs\.s3a\.proxy\.host"),
    ):
        spark.range(3).write.parquet(s3a.url("over"))


def test_failed_writes_leave_nothing(
    spark: SparkSession, s3a: S3a, bucket: Bucket, pending: Callable[[], list[str]]
) -> None:
    @udf("bigint")
    def fails_late(n: int) -> int:
        if n == 90_000:
            raise ValueError("on purpose")
        return n

    rows = spark.range(100_000).select(fails_late("id").alias("n"))
    with conf(spark, {"spark.volley.fallback": "error"}), pytest.raises(Exception, match="on purpose"):
        rows.write.option("maxRecordsPerFile", 1000).parquet(s3a.url("failed"))
    assert keys(bucket, "failed") == []
    assert pending() == []


def test_commit_that_fails(
    spark: SparkSession, s3a: S3a, bucket: Bucket, pending: Callable[[], list[str]]
) -> None:
    """The store completes one upload of several: its object is taken back, and Spark does not begin again."""
    completed: list[str] = []

    def refuse(request: Request) -> Fault | None:
        if request.method != "POST" or "uploadId=" not in request.path:
            return None
        completed.append(request.path)
        return Fault.BUSY if request.path != completed[0] else None

    with (
        faulty_proxy(bucket.port, refuse) as proxy,
        s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}", "fs.s3a.attempts.maximum": "2"}),
        pytest.raises(CommitError),
    ):
        spark.range(10).write.option("maxRecordsPerFile", 3).parquet(s3a.url("uncommitted"))
    assert len(set(completed)) > 1
    assert keys(bucket, "uncommitted") == []
    assert pending() == []


def test_store_that_stops_answering_during_the_commit(bucket: Bucket, tmp_path: Path) -> None:
    """The commit fails after the attempts for one object, not after those for all of them."""
    deletes: list[str] = []

    def refuse(request: Request) -> Fault | None:
        if request.method == "DELETE" and "uploadId=" not in request.path:
            deletes.append(request.path)
            return Fault.BUSY
        return Fault.BUSY if request.method == "POST" and "uploadId=" in request.path else None

    file = tmp_path / "file"
    file.write_bytes(b"x")
    with faulty_proxy(bucket.port, refuse) as proxy:
        store = bucket.add_store(proxy.port, attempts=2)
        with UploadStaging(store.id, f"s3a://{bucket.name}/silent") as staging:
            uploads = [staging.stage(file, f"{number}-{staging.job}") for number in range(5)]
            written = [Written(upload.to_text(), "", 1, 1) for upload in uploads]
            with pytest.raises(CommitError):
                staging.commit(written, mark_success=True)
    assert len(deletes) == 2


def test_lost_answers(bucket: Bucket, tmp_path: Path, pending: Callable[[], list[str]]) -> None:
    """An upload that was completed, though its answer was lost, is complete; an aborted one stays aborted."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    uploads = Uploads(bucket.add_store().id, bucket.name)
    first = uploads.stage(file, "lost/1")
    assert Upload.from_text(first.to_text()) == first
    assert pending() == ["lost/1"]
    assert keys(bucket, "lost") == []
    uploads.complete(first)
    uploads.complete(first)
    assert keys(bucket, "lost") == [f"{bucket.name}/lost/1"]
    second = uploads.stage(file, "lost/2-job")
    uploads.stage(file, "lost/3-other")
    assert uploads.abort_job("lost/", "-job") == 1
    assert pending() == ["lost/3-other"]
    uploads.abort(second.key, second.id)
    # What another program uploads is left alone, and so is what may still be completed.
    abandoned = f"lost/part-00000-{uuid.uuid4()}-00000-c000.snappy.parquet"
    uploads.stage(file, abandoned)
    assert uploads.abort_abandoned("lost/") == 0
    assert uploads.abort_abandoned("lost/", timedelta(seconds=-60)) == 1
    assert pending() == ["lost/3-other"]
    assert uploads.abort_job("lost/", "other") == 1
    assert pending() == []
