# SPDX-License-Identifier: Apache-2.0
"""Directories of symbolic links, which give DataFusion any set of files as one path.

    <directory>/__volley_part=0/000000.parquet -> /data/t/day=2024-01-01/a.parquet
    <directory>/__volley_part=1/000001.parquet -> /data/t/day=2024-01-02/b.parquet

A directory is reused by the next scan of the same files: DataFusion caches footers and statistics by path, and reading
them again would take most of the time of a short query. Files that have changed get a new directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from volley.plan.expressions import Scalar
from volley.plan.nodes import DataFile
from volley.process.runtime import Phase, Shared

PART = "__volley_part"
"""The column that DataFusion derives from the folder names; only with several partitions."""

# Beyond this many links, unused directories are removed.
MAX_KEPT_LINKS = 20_000

_Key = tuple[str, tuple[tuple[str, int, int, tuple[Scalar, ...]], ...]]


@dataclass
class _Directory:
    path: Path
    links: int
    users: int = 0


class LinkDirectories:
    """Directories of links, kept until `close`. Thread-safe."""

    def __init__(self, max_kept_links: int = MAX_KEPT_LINKS) -> None:
        self._max_kept_links = max_kept_links
        self._lock = threading.Lock()
        self._home: Path | None = None
        self._made = 0
        # In the order of their last use.
        self._directories: OrderedDict[_Key, _Directory] = OrderedDict()

    @contextmanager
    def link(self, files: Sequence[DataFile], suffix: str = ".parquet") -> Iterator[str]:
        """A directory with these files, all with this suffix. It does not change while the context is open."""
        key = (suffix, tuple(_identity(file) for file in files))
        with self._lock:
            directory = self._directories.get(key) or self._make(key, files)
            self._directories.move_to_end(key)
            directory.users += 1
        try:
            yield f"{directory.path}/"
        finally:
            with self._lock:
                directory.users -= 1
                self._shrink()

    def close(self) -> None:
        """Remove all directories."""
        with self._lock:
            home, self._home = self._home, None
            self._directories.clear()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _make(self, key: _Key, files: Sequence[DataFile]) -> _Directory:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="volley-scan-"))
        path = self._home / str(self._made)
        self._made += 1
        _link(path, files, key[0])
        self._directories[key] = directory = _Directory(path, len(files))
        return directory

    def _shrink(self) -> None:
        links = sum(directory.links for directory in self._directories.values())
        for key, directory in list(self._directories.items()):
            if links <= self._max_kept_links:
                return
            if not directory.users:
                links -= directory.links
                del self._directories[key]
                shutil.rmtree(directory.path, ignore_errors=True)


@dataclass(frozen=True)
class Link:
    """Files and the directory that links to them."""

    files: Sequence[DataFile]
    suffix: str
    directory: str

    def enter(self, resources: ExitStack) -> str:
        """The directory of these files as they are now, which `resources` holds."""
        return link_files(self.files, self.suffix, resources).directory


def link_files(files: Sequence[DataFile], suffix: str, resources: ExitStack) -> Link:
    """Link to the files until `resources` is closed."""
    return Link(files, suffix, resources.enter_context(shared_directories().link(files, suffix)))


def partitions_of(files: Sequence[DataFile]) -> list[tuple[Scalar, ...]]:
    """The distinct tuples of partition values. A tuple's index is the number of its folder."""
    return list(dict.fromkeys(file.partition for file in files))


def _identity(file: DataFile) -> tuple[str, int, int, tuple[Scalar, ...]]:
    status = os.stat(file.path)  # noqa: PTH116  # a Path costs more than the call, for every file of a query
    return (file.path, status.st_size, status.st_mtime_ns, file.partition)


def _link(directory: Path, files: Sequence[DataFile], suffix: str) -> None:
    directory.mkdir()
    partitions = partitions_of(files)
    folders = dict.fromkeys(partitions, directory)
    if len(partitions) > 1:
        for number, values in enumerate(partitions):
            folders[values] = directory / f"{PART}={number}"
            folders[values].mkdir()
    for number, file in enumerate(files):
        (folders[file.partition] / f"{number:06}{suffix}").symlink_to(Path(file.path).absolute())


_shared: Shared[None, LinkDirectories] = Shared(Phase.FILES, close=LinkDirectories.close)


def shared_directories() -> LinkDirectories:
    """The directories of this process. They are removed when it ends; a forked child has its own."""
    return _shared.get(None, LinkDirectories)
