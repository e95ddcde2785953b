# SPDX-License-Identifier: Apache-2.0
"""An object store as a session of Spark sees it in tests. Its objects are local files too, which Spark reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
from pyspark.sql import SparkSession

from volley.testing.hadoop_settings import change_settings
from volley.testing.java_classes import compile_java


class MirroredStore:
    """`java_class` is the name of the connector that Hadoop would load for `url`, whose objects are in `bucket`.

    `time_key` is the metadata of an object with the time when it was written.
    """

    def __init__(
        self,
        spark: SparkSession,
        java_class: str,
        url: str,
        objects: fs.FileSystem,
        bucket: str,
        time_key: str,
        settings: Mapping[str, str],
    ) -> None:
        jvm: Any = spark._jvm
        conf = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
        package, _, name = java_class.rpartition(".")
        scheme = url.partition(":")[0]
        conf.setClassLoader(
            compile_java(spark, "MirroredFileSystem.java", PACKAGE=package, NAME=name, SCHEME=scheme)
        )
        conf.set(f"fs.{scheme}.impl", java_class)
        self._files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI(url), conf)
        self._settings = self._files.getConf()
        self._url = url
        self.objects = objects
        self._bucket = bucket
        self._time_key = time_key
        self.set(settings)

    def put(self, path: Path) -> str:
        """Make a local file, or the files of a directory, objects of the bucket. Returns the URL."""
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                with self.objects.open_output_stream(f"{self._bucket}{file}") as stream:
                    stream.write(file.read_bytes())
                with self.objects.open_input_file(f"{self._bucket}{file}") as opened:
                    modified = datetime.fromisoformat(opened.metadata()[self._time_key].decode()).timestamp()
                os.utime(file, (modified, modified))
        return f"{self._url}{path}"

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Change settings of the file system; None removes one."""
        change_settings(self._settings, settings)

    def close(self) -> None:
        """Make Spark forget the file system."""
        self._files.close()
