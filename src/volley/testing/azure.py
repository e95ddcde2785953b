# SPDX-License-Identifier: Apache-2.0
"""A storage account of Azure for tests: Azurite (`npm install -g azurite`), and what Spark reads in its place."""

from __future__ import annotations

import base64
import hmac
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import pyarrow.fs as fs
from pyspark.sql import SparkSession

from volley.testing.mirrored_store import MirroredStore
from volley.testing.ports import free_port, wait_for_port

ACCOUNT = "devstoreaccount1"
# The key that is built into the emulator.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "lake"
_START_SECONDS = 60.0


def azurite_program() -> str | None:
    return shutil.which(os.environ.get("VOLLEY_AZURITE", "azurite-blob"))


@dataclass(frozen=True)
class Account:
    """A server with one container."""

    port: int

    def signature(self, key: str = KEY) -> str:
        """A token with which one may read for an hour."""
        end = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        # The version of the protocol, the kinds of services and resources, rights, protocols.
        fields = {"sv": "2021-06-08", "ss": "b", "srt": "sco", "sp": "rl", "spr": "https,http", "se": end}
        signed = (ACCOUNT, "rl", "b", "sco", "", end, "", "https,http", "2021-06-08", "", "")
        digest = hmac.digest(base64.b64decode(key), "\n".join(signed).encode(), "sha256")
        return urlencode({**fields, "sig": base64.b64encode(digest).decode()})

    def connect(self) -> fs.FileSystem:
        place = f"127.0.0.1:{self.port}"
        return fs.AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=place,
            blob_storage_scheme="http",
            dfs_storage_authority=place,
            dfs_storage_scheme="http",
        )


@contextmanager
def azure_server(program: str) -> Iterator[Account]:
    port = free_port()
    with TemporaryDirectory() as directory:
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", directory]
        options += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            wait_for_port(port, process, "azurite", seconds=_START_SECONDS)
            account = Account(port)
            account.connect().create_dir(CONTAINER)
            yield account
        finally:
            process.terminate()
            process.wait()


def open_abfs(spark: SparkSession, account: Account) -> MirroredStore:
    """The container, in the session's JVM."""
    return MirroredStore(
        spark,
        "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        f"abfs://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net",
        account.connect(),
        CONTAINER,
        "Last-Modified",
        {
            "fs.azure.abfs.endpoint": f"127.0.0.1:{account.port}",
            "fs.azure.always.use.https": "false",
            f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net": KEY,
        },
    )
