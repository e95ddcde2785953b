# SPDX-License-Identifier: Apache-2.0
"""Writes to object stores that replace rows, and tables of the catalog there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.errors import CommitError
from volley.testing.http_faults import Fault, Request, faulty_proxy
from volley.testing.s3 import KEYS, Bucket
from volley.testing.s3a import S3a

DYNAMIC = {"partitionOverwriteMode": "dynamic"}


@pytest.fixture
def objects(bucket: Bucket) -> Callable[[str], list[str]]:
    """The keys below a folder, after asserting that no upload is pending."""
    boto3: Any = pytest.importorskip("boto3")
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{bucket.port}",
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )

    def find(folder: str) -> list[str]:
        assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket.name)
        found = s3.list_objects_v2(Bucket=bucket.name, Prefix=f"{folder}/").get("Contents", [])
        return [entry["Key"] for entry in found if not entry["Key"].endswith("/")]

    return find


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def assert_native(spark: SparkSession) -> None:
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native", report.reasons


def test_overwrites(spark: SparkSession, s3a: S3a, objects: Callable[[str], list[str]]) -> None:
    url = s3a.url("over")
    first = spark.sql("SELECT id AS n, CAST(id % 3 AS INT) AS p FROM range(6)")
    first.write.partitionBy("p").parquet(url)
    # Folders that are not written stay with dynamic overwrite, and go without.
    spark.sql("SELECT 7L AS n, 1 AS p").write.mode("overwrite").options(**DYNAMIC).partitionBy("p").parquet(
        url
    )
    assert_native(spark)
    assert rows_of(spark.read.parquet(url)) == [(0, 0), (2, 2), (3, 0), (5, 2), (7, 1)]
    assert "over/_SUCCESS" in objects("over")
    spark.sql("SELECT 8L AS n, 2 AS p").write.mode("overwrite").partitionBy("p").parquet(url)
    assert_native(spark)
    assert rows_of(spark.read.parquet(url)) == [(8, 2)]
    assert len(objects("over")) == 2
    # Other formats, and no rows at all.
    first.where("n < 0").write.mode("overwrite").json(url)
    assert_native(spark)
    assert [key for key in objects("over") if key.endswith(".parquet")] == []
    assert spark.read.schema("n bigint").json(url).count() == 0


@pytest.mark.slow
def test_overwrites_that_fail(
    spark: SparkSession, s3a: S3a, bucket: Bucket, objects: Callable[[str], list[str]]
) -> None:
    """Old rows stay until all new ones are there. What could not be deleted is deleted by the next overwrite."""
    url = s3a.url("unsafe")
    spark.range(3).write.parquet(url)
    before = objects("unsafe")
    completed: list[str] = []

    def complete_one(request: Request) -> Fault | None:
        if request.method != "POST" or "uploadId=" not in request.path:
            return None
        completed.append(request.path)
        return Fault.BUSY if request.path != completed[0] else None

    def delete_none(request: Request) -> Fault | None:
        return Fault.BUSY if request.method == "POST" and request.path.endswith("?delete") else None

    new = spark.range(10, 20).write.mode("overwrite").option("maxRecordsPerFile", 3)
    for choose in (complete_one, delete_none):
        with (
            faulty_proxy(bucket.port, choose) as proxy,
            s3a.changed({"fs.s3a.endpoint": f"127.0.0.1:{proxy.port}", "fs.s3a.attempts.maximum": "2"}),
            pytest.raises(CommitError),
        ):
            new.parquet(url)
        if choose is complete_one:
            assert objects("unsafe") == before
    assert set(objects("unsafe")) > set(before) - {"unsafe/_SUCCESS"}
    assert "unsafe/_SUCCESS" not in objects("unsafe")
    new.parquet(url)
    assert_native(spark)
    assert rows_of(spark.read.parquet(url)) == [(n,) for n in range(10, 20)]
    assert "unsafe/_SUCCESS" in objects("unsafe")


@pytest.fixture
def database(spark: SparkSession, s3a: S3a) -> Iterator[str]:
    """A database whose tables are in the bucket."""
    spark.sql(f"CREATE DATABASE lake LOCATION '{s3a.url('lake')}'")
    yield "lake"
    spark.sql("DROP DATABASE lake CASCADE")


@pytest.mark.slow
def test_tables(spark: SparkSession, database: str, objects: Callable[[str], list[str]]) -> None:
    rows = spark.sql("SELECT id AS n, CAST(id % 2 AS INT) AS p FROM range(4)")
    rows.write.partitionBy("p").saveAsTable(f"{database}.t")
    assert_native(spark)
    assert objects("lake/t")[0].startswith("lake/t/_SUCCESS")
    for statement, expected in (
        (f"INSERT INTO {database}.t VALUES (9, 5)", [(0, 0), (1, 1), (2, 0), (3, 1), (9, 5)]),
        (f"INSERT OVERWRITE {database}.t PARTITION (p = 1) SELECT 7L", [(0, 0), (2, 0), (7, 1), (9, 5)]),
        (f"INSERT OVERWRITE {database}.t SELECT 8L, 6", [(8, 6)]),
    ):
        spark.sql(statement)
        assert_native(spark)
        assert rows_of(spark.table(f"{database}.t")) == expected
    assert [row.partition for row in spark.sql(f"SHOW PARTITIONS {database}.t").collect()] == ["p=6"]
    rows.write.mode("overwrite").saveAsTable(f"{database}.t")
    assert_native(spark)
    assert rows_of(spark.table(f"{database}.t")) == rows_of(rows)
    assert len(objects("lake/t")) >= 2
    spark.sql(f"CREATE TABLE {database}.u USING parquet AS SELECT 1 AS a")
    assert_native(spark)
    spark.sql(f"DROP TABLE {database}.u")
    assert objects("lake/u") == []
