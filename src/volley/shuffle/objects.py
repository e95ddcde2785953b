# SPDX-License-Identifier: Apache-2.0
"""A folder of an object store: any file system that pyarrow knows, by its URI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from volley.errors import ConfigError
from volley.shuffle.conditional_put import WriteOnce, once_in

_WITHOUT_FOLDERS = (fs.S3FileSystem, fs.GcsFileSystem, fs.AzureFileSystem)


@dataclass(frozen=True)
class Folder:
    """`uri` without credentials, and how to reach it."""

    uri: str
    files: fs.FileSystem
    root: str
    once: WriteOnce

    @classmethod
    def open(cls, uri: str) -> Folder:
        if urlsplit(uri).username or re.search(r"(secret|token|password)[^=&]*=", uri, re.IGNORECASE):
            raise ConfigError(
                "spark.volley.shuffle.store has credentials in it.",
                hint="Give them in the environment (AWS_ACCESS_KEY_ID, ...) or in the files that its SDK reads.",
            )
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ImportError, ValueError) as error:
            raise ConfigError(f"spark.volley.shuffle.store={uri}: {error}.") from error
        return cls(uri, files, root.rstrip("/"), once_in(files, uri))

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def write(self, path: str, data: bytes) -> None:
        """The whole object, or an error; on stores that are not file systems nobody sees a part of it."""
        self.make_parent(path)
        with self.files.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def write_once(self, path: str, data: bytes) -> None:
        """As `write`; AlreadyThere when the object exists."""
        self.make_parent(path)
        self.once(path, data)

    def make_parent(self, path: str) -> None:
        # Object stores have no folders, and making one costs a call.
        if not isinstance(self.files, _WITHOUT_FOLDERS):
            self.files.create_dir(path.rpartition("/")[0], recursive=True)

    def read(self, path: str, start: int, size_bytes: int) -> pa.Buffer:
        with self.files.open_input_file(path) as file:
            return pa.py_buffer(file.read_at(size_bytes, start))

    def exists(self, path: str) -> bool:
        return bool(self.files.get_file_info(path).type == fs.FileType.File)

    def written_at(self, paths: Sequence[str]) -> list[float | None]:
        """When each object was written, by the clock of the store; None for one that is not there."""
        infos = self.files.get_file_info(list(paths))
        return [
            info.mtime.timestamp() if info.type == fs.FileType.File and info.mtime is not None else None
            for info in infos
        ]

    def folders(self) -> list[str]:
        """The names of the folders right below."""
        found = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]

    def contents(self, path: str) -> dict[str, float | None]:
        """All that is below a folder, by path from there, with the time at which it was written."""
        found = self.files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        return {
            info.path.removeprefix(path).strip("/"): info.mtime.timestamp()
            if info.mtime is not None
            else None
            for info in found
        }

    def remove(self, path: str) -> None:
        """A folder and all in it; nothing when it is not there."""
        try:
            self.files.delete_dir(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if self.files.get_file_info(path).type != fs.FileType.NotFound:
                raise error from None
