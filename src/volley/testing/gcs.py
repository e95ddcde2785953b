# SPDX-License-Identifier: Apache-2.0
"""A bucket of Google Cloud Storage for tests: `gcp-storage-emulator`, and what Spark reads in its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import pyarrow.fs as fs
from pyspark.sql import SparkSession

from volley.testing.mirrored_store import MirroredStore
from volley.testing.ports import free_port, wait_for_port

BUCKET = "lake"
_START_SECONDS = 60.0


# The emulator serves one request at a time, but Arrow begins one before it has ended another.
_PROGRAM = """
import http.server, sys
http.server.HTTPServer = http.server.ThreadingHTTPServer
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), True, sys.argv[2]).run()
"""


def has_gcs_emulator() -> bool:
    return find_spec("gcp_storage_emulator") is not None


@dataclass(frozen=True)
class GcsServer:
    """A server with one bucket, which checks no credentials."""

    port: int

    def connect(self) -> fs.FileSystem:
        return fs.GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=f"127.0.0.1:{self.port}", project_id="volley"
        )


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    port = free_port()
    command = [sys.executable, "-c", _PROGRAM, str(port), BUCKET]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process, "gcp-storage-emulator", seconds=_START_SECONDS)
        yield GcsServer(port)
    finally:
        process.terminate()
        process.wait()


def open_gcs(spark: SparkSession, server: GcsServer) -> MirroredStore:
    """The bucket, in the session's JVM."""
    return MirroredStore(
        spark,
        "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
        f"gs://{BUCKET}",
        server.connect(),
        BUCKET,
        "updated",
        {"fs.gs.storage.root.url": f"http://127.0.0.1:{server.port}/", "fs.gs.auth.type": "UNAUTHENTICATED"},
    )
