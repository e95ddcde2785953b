# SPDX-License-Identifier: Apache-2.0
"""A folder in an object store, or in any file system that pyarrow supports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as fs

from volley.errors import ConfigError
from volley.shuffle.conditional_put import S3Puts, WriteOnce, choose_write_once

_WITHOUT_FOLDERS = (fs.S3FileSystem, fs.GcsFileSystem, fs.AzureFileSystem)


@dataclass(frozen=True)
class Folder:
    """A folder and the file system that it is in. `uri` has no credentials."""

    uri: str
    files: fs.FileSystem
    root: str
    once: WriteOnce

    @classmethod
    def open(cls, uri: str) -> Folder:
        if urlsplit(uri).username or re.search(r"(secret|token|password)[^=&]*=", uri, re.IGNORECASE):
            raise ConfigError(
                "spark.volley.shuffle.store contains credentials.",
                hint="Put them in the environment (AWS_ACCESS_KEY_ID, ...) or in the configuration files of the SDK.",
            )
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ImportError, ValueError) as error:
            raise ConfigError(f"spark.volley.shuffle.store={uri}: {error}.") from error
        return cls(uri, files, root.rstrip("/"), choose_write_once(files, uri))

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def write(self, path: str, data: bytes) -> None:
        """Write the whole object or raise OSError. Object stores, unlike file systems, never show a part of it."""
        self.make_parent(path)
        with self.files.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def write_once(self, path: str, data: bytes) -> None:
        """Like `write`, but raise AlreadyThere if the object exists."""
        self.make_parent(path)
        self.once(path, data)

    def make_parent(self, path: str) -> None:
        # Object stores have no folders, and creating one costs a call.
        if not isinstance(self.files, _WITHOUT_FOLDERS):
            self.files.create_dir(path.rpartition("/")[0], recursive=True)

    def read(self, path: str, start: int, size_bytes: int) -> pa.Buffer:
        with self.files.open_input_file(path) as file:
            return pa.py_buffer(file.read_at(size_bytes, start))

    def read_all(self, path: str) -> bytes:
        with self.files.open_input_file(path) as file:
            return bytes(file.read())

    def delete(self, path: str) -> None:
        """Delete an object. A missing one is not an error."""
        with suppress(FileNotFoundError):
            self.files.delete_file(path)

    def size_bytes(self, path: str) -> int:
        """The size of everything in a folder."""
        found = self.files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        return sum(info.size for info in found if info.type == fs.FileType.File)

    def exists(self, path: str) -> bool:
        return bool(self.files.get_file_info(path).type == fs.FileType.File)

    def written_at(self, paths: Sequence[str]) -> list[float | None]:
        """When each object was written, by the store's clock; None for a missing one."""
        infos = self.files.get_file_info(list(paths))
        return [
            info.mtime.timestamp() if info.type == fs.FileType.File and info.mtime is not None else None
            for info in infos
        ]

    def folders(self) -> list[str]:
        """The names of the direct subfolders."""
        found = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return [info.base_name for info in found if info.type == fs.FileType.Directory]

    def contents(self, path: str) -> dict[str, float | None]:
        """The relative paths of everything in a folder, with the times at which they were written."""
        found = self.files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        return {
            info.path.removeprefix(path).strip("/"): info.mtime.timestamp()
            if info.mtime is not None
            else None
            for info in found
        }

    def remove(self, path: str) -> None:
        """Remove a folder and its contents, also unfinished ones. A missing folder is not an error."""
        try:
            self.files.delete_dir(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if self.files.get_file_info(path).type != fs.FileType.NotFound:
                raise error from None
        if isinstance(self.once, S3Puts):
            # Multipart uploads of killed writers are invisible, but they take space and cost money.
            self.once.abort_uploads(path)
