# SPDX-License-Identifier: Apache-2.0
"""Sends the driver's files that Python functions need to workers in other processes.

    broadcast variable     its file
    sc.addFile, addPyFile, spark.archives     the directory that holds them all, as one archive

A file is named by the SHA-256 of its content, so a worker that has it from another task or query does not ask again.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from volley.errors import CrossingError
from volley.lru_cache import LruCache
from volley.plan.nodes import Node, transform
from volley.plan.python_nodes import PythonNode, PythonProcess, SentFile
from volley.splits.file_feed import FIRST_FILE_FEED, FileFeed
from volley.stages.graph import StageGraph

_Listing = tuple[object, ...]
"""A path, and the size and times of everything there."""

# Hashing a file costs more than reading its size and times.
_names: LruCache[_Listing, str] = LruCache(256)
# An archive takes space until its last query has ended.
_feeds: WeakValueDictionary[_Listing, FileFeed] = WeakValueDictionary()
_lock = threading.Lock()


class FunctionFiles:
    """The files that one query sends, as feeds by their numbers."""

    def __init__(self) -> None:
        self.feeds: dict[int, FileFeed] = {}
        self._sent: dict[str, SentFile] = {}

    def send(self, graph: StageGraph) -> StageGraph:
        """The stages with the names of files in place of their paths. CrossingError if a file cannot be read."""
        try:
            stages = tuple(
                replace(stage, plan=transform(stage.plan, self._send_node)) for stage in graph.stages
            )
        except OSError as error:
            raise CrossingError(f"a file that a Python function needs cannot be read: {error}") from error
        return replace(graph, stages=stages)

    def _send_node(self, node: Node) -> Node:
        if not isinstance(node, PythonNode):
            return node
        process = self._send_process(node.program.process)
        return replace(node, program=replace(node.program, process=process))

    def _send_process(self, process: PythonProcess) -> PythonProcess:
        broadcasts = {number: self._add(path, _open) for number, path in process.broadcasts}
        sent = list(broadcasts.values())
        directory = process.files_directory
        if _has_files(directory):
            packed = self._add(directory, _pack, unpacked=True)
            directory = packed.name
            sent.append(packed)
        return replace(
            process,
            broadcasts=tuple((number, file.name) for number, file in broadcasts.items()),
            files_directory=directory,
            sent=tuple(dict.fromkeys(sent)),
        )

    def _add(self, path: str, open_feed: Callable[[str], FileFeed], unpacked: bool = False) -> SentFile:
        name, feed = _content(path, open_feed)
        key = f"{name} {unpacked}"
        if key not in self._sent:
            number = FIRST_FILE_FEED + len(self.feeds)
            self.feeds[number] = feed
            self._sent[key] = SentFile(name, feed.size_bytes, number, unpacked)
        return self._sent[key]


def _content(path: str, open_feed: Callable[[str], FileFeed]) -> tuple[str, FileFeed]:
    """The name of what is there, and the feed of it that other queries have, or a new one."""
    key = (path, *_listing(path))
    with _lock:
        if (feed := _feeds.get(key)) is None:
            _feeds[key] = feed = open_feed(path)
        if (name := _names.get(key)) is None:
            _names.put(key, name := _hash(feed))
        return name, feed


def _hash(feed: FileFeed) -> str:
    digest, number = hashlib.sha256(), 0
    while piece := feed.piece(number):
        digest.update(piece)
        number += 1
    return digest.hexdigest()


def _open(path: str) -> FileFeed:
    with Path(path).open("rb") as file:
        return FileFeed(file)


def _has_files(directory: str) -> bool:
    return Path(directory).is_dir() and any(Path(directory).iterdir())


def _pack(directory: str) -> FileFeed:
    """An archive of a directory, without a name in the file system."""
    with tempfile.TemporaryFile(prefix="volley-files-") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path in sorted(Path(directory).iterdir()):
                archive.add(path, arcname=path.name)
        file.flush()
        return FileFeed(file)


def _listing(path: str) -> list[tuple[str, int, int, int]]:
    """Size and times of a file, or of all files below a directory."""
    paths = [Path(path)]
    for root, directories, names in os.walk(path):
        paths += [Path(root, name) for name in (*directories, *names)]
    found = ((item, item.lstat()) for item in sorted(paths))
    return [(str(item), status.st_size, status.st_mtime_ns, status.st_ctime_ns) for item, status in found]
