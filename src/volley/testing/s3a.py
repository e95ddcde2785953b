# SPDX-License-Identifier: Apache-2.0
"""Lets a Spark session plan and read `s3a://` without hadoop-aws, which is not on PyPI.

`S3AFileSystem.java` has the name of the real connector, so that Volley takes it for that, and maps its settings. Spark
keeps one file system object for each bucket and JVM: the one that is made here. So executors must be in the same JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from volley.testing.hadoop_settings import change_settings
from volley.testing.java_classes import compile_java
from volley.testing.s3 import KEYS, Bucket

_SECRETS = {
    "fs.s3a.access.key": KEYS["AWS_ACCESS_KEY_ID"],
    "fs.s3a.secret.key": KEYS["AWS_SECRET_ACCESS_KEY"],
}


class S3a:
    """The file system of a bucket in a session's JVM."""

    def __init__(self, spark: SparkSession, bucket: Bucket) -> None:
        jvm: Any = spark._jvm
        settings = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
        settings.setClassLoader(compile_java(spark, "S3AFileSystem.java"))
        settings.set("volley.test.filer", f"127.0.0.1:{bucket.filer_port}")
        self._name = f"s3a://{bucket.name}"
        self._files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI(self._name), settings)
        self._settings = self._files.getConf()
        self.set(
            {
                "fs.s3a.endpoint": f"127.0.0.1:{bucket.port}",
                "fs.s3a.endpoint.region": "us-east-1",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
                **_SECRETS,
            }
        )

    def url(self, path: str) -> str:
        return f"{self._name}/{path}"

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change settings of the file system; None removes one."""
        change_settings(self._settings, settings)

    @contextmanager
    def changed(self, settings: Mapping[str, str | None]) -> Iterator[None]:
        """Other settings for the duration of a block."""
        before = {key: self._settings.get(key) for key in settings}
        self.set(settings)
        try:
            yield
        finally:
            self.set(before)

    def close(self) -> None:
        """Make Spark forget the file system."""
        self._files.close()
