# SPDX-License-Identifier: Apache-2.0
"""Files of Hadoop file systems that have no native client, such as `hdfs://`: the driver's JVM reads them.

    DataFile.store -> fs.PyFileSystem -> HadoopFiles -> Unix domain socket -> FileServer.java -> FileSystem.open

The JVM uses the file system objects of Spark itself. Only workers in the driver's process can go there. An open file
keeps its connection, and that its stream in the JVM.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
from py4j.protocol import Py4JError

from volley.jvm.connection import Abandoned, Connection, EvaluationError
from volley.plan.jvm import Java
from volley.plan.reader import describe_error, instantiate
from volley.process.runtime import Phase, Shared
from volley.spark_versions.java import java_source
from volley.storage.registry import shared_stores
from volley.storage.s3a import Unmapped

_REQUEST = struct.Struct(">qq")
_STATUS = struct.Struct(">qq")
_TIMEOUT_SECONDS = 120.0
# An array of Java, and a message, is no larger.
_MOST_BYTES = 64 * 2**20


class FileServer:
    """The server in one JVM, as this process sees it."""

    def __init__(self, gateway: Java) -> None:
        # Its owner alone may enter the directory, so nobody else can connect.
        self._directory = tempfile.mkdtemp(prefix="volley-jvm-")
        self.path = str(Path(self._directory) / "files")
        try:
            source = java_source("volley.jvm", "FileServer.java")
            self._java = instantiate(gateway, source, self.path)
        except BaseException:
            self.close()
            raise

    def add(self, system: Java) -> int:
        """The number of a file system in requests."""
        return int(self._java.add(system))

    def connect(self) -> Connection:
        return Connection(self.path)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


_servers: Shared[Java, FileServer] = Shared(Phase.CONNECTIONS, close=FileServer.close)


def add_hadoop_store(gateway: Java, system: Java, root: str) -> str:
    """The id of the store of a file system that only the JVM can read. Raises Unmapped if it cannot serve files."""
    try:
        server = _servers.get(gateway, lambda: FileServer(gateway))
        number = server.add(system)
    except (Py4JError, OSError) as error:
        raise Unmapped(
            f"{root.partition(':')[0]}: files cannot be served ({describe_error(error)})"
        ) from None
    handler = HadoopFiles(server.connect, number)
    return shared_stores().add_local((server.path, number), fs.PyFileSystem(handler))


class HadoopFiles(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """What a scan needs of a file system. Paths are URLs that are not encoded."""

    def __init__(self, connect: Callable[[], Connection], number: int) -> None:
        self._connect = connect
        self._number = number

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        found = []
        for path in paths:
            with HadoopFile(self._connect(), self._number, path) as opened:
                size_bytes, modified_ms = opened.describe()
            found.append(
                fs.FileInfo(path, fs.FileType.File, size=size_bytes, mtime_ns=1_000_000 * modified_ms)
            )
        return found

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(HadoopFile(self._connect(), self._number, path), mode="r")

    def _not_supported(self, *arguments: Any) -> Any:
        raise NotImplementedError("files are only read")

    open_input_stream = get_file_info_selector = create_dir = delete_dir = _not_supported
    delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _not_supported
    open_output_stream = open_append_stream = _not_supported


class HadoopFile:
    """An open file, as Python's files are. Used by one thread at a time."""

    def __init__(self, connection: Connection, number: int, path: str) -> None:
        self._connection = connection
        self._number = number
        self._path = path.encode()
        self._position = 0
        self._size_bytes: int | None = None
        self.closed = False

    def __enter__(self) -> HadoopFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def describe(self) -> tuple[int, int]:
        """The size, and the time of the last change in milliseconds."""
        size_bytes, modified_ms = _STATUS.unpack(self._ask(0, -1))
        return size_bytes, modified_ms

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def size(self) -> int:
        if self._size_bytes is None:
            self._size_bytes, _ = self.describe()
        return self._size_bytes

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        begin = (0, self._position, self.size() if whence == 2 else 0)[whence]
        self._position = begin + offset
        return self._position

    def read(self, size_bytes: int = -1) -> bytes:
        left = max(0, self.size() - self._position)
        left = left if size_bytes < 0 else min(size_bytes, left)
        parts = []
        while left:
            parts.append(self._ask(self._position, min(left, _MOST_BYTES)))
            self._position += len(parts[-1])
            left -= len(parts[-1])
        return b"".join(parts)

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed = True
        self._connection.close()

    def _ask(self, offset: int, size_bytes: int) -> bytes:
        end = time.monotonic() + _TIMEOUT_SECONDS
        request = memoryview(_REQUEST.pack(offset, size_bytes) + self._path)
        try:
            answer = self._connection.ask(self._number, request, lambda: time.monotonic() > end)
        except Abandoned:
            self.close()
            raise OSError(f"no answer within {_TIMEOUT_SECONDS:.0f} seconds") from None
        except EvaluationError as error:
            raise OSError(str(error)) from None
        data: bytes = answer.to_pybytes()
        return data
