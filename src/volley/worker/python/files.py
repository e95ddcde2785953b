# SPDX-License-Identifier: Apache-2.0
"""Files that Python functions of remote drivers need: broadcast variables, and files added to the SparkContext.

    plan with names  -->  ask the driver for what is not here  -->  plan with paths of this machine
                          (splits of a feed, the pieces of a file)

A file is kept for all tasks that name it, by the hash of its content, and for a minute after the last of them.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from volley.errors import QueryError
from volley.plan.nodes import Node, transform, walk
from volley.plan.python_nodes import PythonNode, PythonProcess, SentFile
from volley.process.runtime import Phase, Shared
from volley.worker.split_queue import SplitQueue, SplitQueues, Stopped

# Like idle Python workers, which may read the file of a broadcast variable late.
_IDLE_SECONDS = 60.0


@dataclass
class _Kept:
    """`users` counts the tasks that need the file."""

    receiving: bool = False
    complete: bool = False
    users: int = 0
    idle_since: float = 0.0


class FunctionFiles:
    """The files that this process has received. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="volley-files-"))
        self._changed = threading.Condition()
        self._kept: dict[Path, _Kept] = {}
        self._reaper: threading.Timer | None = None

    def path(self, file: SentFile) -> Path:
        """The path of a file that is held."""
        return self._directory / (f"{file.name}.unpacked" if file.unpacked else file.name)

    def close(self) -> None:
        with self._changed:
            if self._reaper is not None:
                self._reaper.cancel()
        shutil.rmtree(self._directory, ignore_errors=True)

    def enter(self, file: SentFile) -> None:
        """Hold a received file until `leave`."""
        with self._changed:
            self._kept.setdefault(self.path(file), _Kept()).users += 1

    def leave(self, file: SentFile) -> None:
        with self._changed:
            kept = self._kept[self.path(file)]
            kept.users -= 1
            kept.idle_since = time.monotonic()
            if self._reaper is None:
                self._schedule()

    def begin(self, file: SentFile, is_stopped: Callable[[], bool]) -> bool:
        """Whether the caller has to receive the file, and then call `end`. False once it is here.

        Waits while another task receives it. Raises `Stopped` if that takes longer than the caller's own task.
        """
        with self._changed:
            kept = self._kept[self.path(file)]
            self._changed.wait_for(lambda: not kept.receiving or is_stopped())
            if is_stopped():
                raise Stopped
            kept.receiving = not kept.complete
            return kept.receiving

    def end(self, file: SentFile, complete: bool) -> None:
        with self._changed:
            kept = self._kept[self.path(file)]
            kept.receiving, kept.complete = False, complete
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake waiting tasks, so that they notice if they were stopped."""
        with self._changed:
            self._changed.notify_all()

    def _schedule(self) -> None:
        self._reaper = threading.Timer(_IDLE_SECONDS, self._reap)
        self._reaper.daemon = True
        self._reaper.start()

    def _reap(self) -> None:
        """Remove files that no task has used for a while."""
        before = time.monotonic() - _IDLE_SECONDS
        with self._changed:
            self._reaper = None
            for path, kept in list(self._kept.items()):
                if kept.users == 0 and kept.idle_since <= before:
                    del self._kept[path]
                    _remove(path)
            if self._kept:
                self._schedule()

    def receive(self, file: SentFile, queue: SplitQueue) -> None:
        """Write a file. Raises `Stopped` if the queue is closed, OSError if it does not arrive as it was sent."""
        received = self._directory / f"{file.name}.{file.unpacked}.part"
        digest, size_bytes = hashlib.sha256(), 0
        try:
            with received.open("wb") as out:
                while (piece := queue.take()) is not None:
                    size_bytes += len(piece)
                    if size_bytes > file.size_bytes:
                        raise OSError(f"the driver sends more than the {file.size_bytes} bytes of a file.")
                    digest.update(piece)
                    out.write(piece)
                    queue.mark_read()
            if digest.hexdigest() != file.name:
                raise OSError(f"a file of {file.size_bytes} bytes did not arrive as it was sent.")
            if file.unpacked:
                _unpack(received, self.path(file))
            else:
                received.rename(self.path(file))
        finally:
            received.unlink(missing_ok=True)


class HeldFiles:
    """The files that one run of an attempt needs, until `close`."""

    def __init__(self, files: Sequence[SentFile], queues: SplitQueues | None) -> None:
        self._files = files
        self._queues = queues
        self._kept = shared_function_files()
        self._stopped = False
        self._queue: SplitQueue | None = None
        for file in files:
            self._kept.enter(file)

    def receive(self) -> None:
        """Receive all missing files. Blocks until they have arrived; `stop` ends it with `Stopped`."""
        for file in self._files:
            if not self._kept.begin(file, lambda: self._stopped):
                continue
            complete = False
            try:
                self._kept.receive(file, self._open(file))
                complete = True
            finally:
                self._kept.end(file, complete)

    def stop(self) -> None:
        """The attempt is over."""
        self._stopped = True
        if self._queue is not None:
            self._queue.close()
        self._kept.wake()

    def close(self) -> None:
        for file in self._files:
            self._kept.leave(file)

    def _open(self, file: SentFile) -> SplitQueue:
        if self._queues is None:
            raise QueryError("this task has no feed for the files of its functions.")
        self._queue = self._queues.open(file.feed)
        if self._stopped:
            self._queue.close()
        return self._queue


def files_of(plan: Node) -> tuple[SentFile, ...]:
    """What the functions of a plan need, each file once."""
    found = (node.program.process.sent for node in walk(plan) if isinstance(node, PythonNode))
    return tuple(dict.fromkeys(file for files in found for file in files))


def with_paths(plan: Node) -> Node:
    """The plan with the paths of files in place of their names."""
    files = shared_function_files()

    def change(node: Node) -> Node:
        if not isinstance(node, PythonNode) or not node.program.process.sent:
            return node
        process = _with_paths(node.program.process, files)
        return replace(node, program=replace(node.program, process=process))

    return transform(plan, change)


def _with_paths(process: PythonProcess, files: FunctionFiles) -> PythonProcess:
    plain = {file.name: str(files.path(file)) for file in process.sent if not file.unpacked}
    unpacked = {file.name: str(files.path(file)) for file in process.sent if file.unpacked}
    missing = [name for _, name in process.broadcasts if name not in plain]
    if missing:
        raise QueryError(f"the file {missing[0]} of a broadcast variable was not sent.")
    return replace(
        process,
        broadcasts=tuple((number, plain[name]) for number, name in process.broadcasts),
        files_directory=unpacked.get(process.files_directory, process.files_directory),
        sent=(),
    )


def _unpack(archive: Path, directory: Path) -> None:
    """Unpack all or nothing: an existing directory is complete."""
    partial = directory.with_suffix(".unpacking")
    _remove(partial)
    _remove(directory)
    try:
        with tarfile.open(archive) as content:
            # The sender may run code here anyway, so this only prevents accidents outside the directory.
            content.extractall(partial, filter="tar")
        partial.rename(directory)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_files: Shared[None, FunctionFiles] = Shared(Phase.FILES, close=FunctionFiles.close)


def shared_function_files() -> FunctionFiles:
    """The received files of this process."""
    return _files.get(None, FunctionFiles)
