# SPDX-License-Identifier: Apache-2.0
"""Clients for uploads: what they take from their environment, and what they log."""

from __future__ import annotations

import logging

import pytest

from volley.errors import QueryError
from volley.storage.registry import shared_stores
from volley.storage.settings import Hidden, S3Settings
from volley.storage.uploads import Folder, Uploads, object_name, s3_client

pytest.importorskip("boto3")


def settings(token: str, endpoint: str = "") -> S3Settings:
    keys = (Hidden(f"key-{token}"), Hidden(f"secret-{token}"), Hidden(token))
    found = S3Settings(endpoint, "eu-west-1", True, True, *keys).with_id()
    shared_stores().add((found,))
    return found


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")


def test_the_endpoint_is_that_of_the_settings() -> None:
    """Spark's file system does not look at the variables of the AWS tools."""
    assert s3_client(settings("some token")).meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"
    assert s3_client(settings("some token", "minio:9000")).meta.endpoint_url == "https://minio:9000"


def test_boto_logs_no_secret_of_any_store(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("botocore.endpoint")
    Uploads(settings("token-0").id, "bucket")
    filters = len(logger.filters)
    for number in range(1, 5):
        Uploads(settings(f"token-{number}").id, "bucket")
    assert len(logger.filters) == filters
    with caplog.at_level(logging.DEBUG, logger.name):
        logger.debug("headers %s", {"X-Amz-Security-Token": "token-0", "Authorization": "key-token-4"})
        logger.debug("status %d", 200)
    assert caplog.messages == [
        "headers {'X-Amz-Security-Token': '***', 'Authorization': '***'}",
        "status 200",
    ]


def test_clients_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QueryError, match="endpoint") as raised:
        Uploads(settings("some token", "not a host").id, "bucket")
    assert "not a host" not in str(raised.value)
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(QueryError, match="missing"):
        Uploads(settings("some token").id, "bucket")


def test_names_of_objects() -> None:
    folder = Folder.of("s3a://bucket/a/b/")
    job = "01234567-0123-0123-0123-0123456789ab"
    assert folder.bucket == "bucket"
    assert folder.key(object_name(job, 3, 1, 12, ".csv")) == f"a/b/part-00003-{job}-00001-c012.csv"
    # Spark separates the number of a file in a partition by a dot.
    name = object_name(job, 0, 0, 0, ".snappy.parquet", "p=1")
    assert folder.key(name, "p=1") == f"a/b/p=1/part-00000-{job}-00000.c000.snappy.parquet"
