# SPDX-License-Identifier: Apache-2.0
"""From files that nobody sees to a table that is whole: staging, and the commit of a write.

    new table, or all of it replaced       <parent>/.volley-<name>-<id>/data   becomes  <parent>/<name>
    some folders replaced                  <table>/.volley-<id>/data/<folder>  becomes  <table>/<folder>
    rows added                             <table>/.volley-<id>/data/...       files move to <table>/...

Replacing is one exchange of two directories, which Linux does in one step, so a reader, or whoever finds the table
after a crash, sees the old rows or the new ones. Names that begin with a dot are invisible to Spark's readers. The
staging directory of a process that was killed is removed by the next write to the same table: its lock is free then.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from volley.errors import CommitError, DataError, QueryError
from volley.worker.files import Written

_SUCCESS = "_SUCCESS"
_STAGING = ".volley-"
_LOCK = "lock"
# A writer locks its directory as soon as it has made it.
_UNLOCKED_SECONDS = 3600.0


class Staging:
    """Where one write to `table` collects its files; gone when the block ends.

    In `tasks`, attempts make directories of their own.
    """

    def __init__(self, table: Path, replaces_table: bool) -> None:
        self.table = table
        self._whole = replaces_table or not table.exists()
        self._home = table.parent if self._whole else table
        self._prefix = f"{_STAGING}{table.name}-" if self._whole else _STAGING

    def __enter__(self) -> Staging:
        self._root = self._home / f"{self._prefix}{secrets.token_hex(6)}"
        self.tasks, self._data = self._root / "tasks", self._root / "data"
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self._root.mkdir(mode=0o700)
            self._lock = _locked_file(self._root / _LOCK)
            self.tasks.mkdir()
            self._data.mkdir()
        except OSError as error:
            raise QueryError(f"{self._root}, for staging a write, cannot be made: {error}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove(self._root)
        os.close(self._lock)

    def commit(
        self, files: Iterable[Written], suffix: str, replaces: Iterable[str], mark_success: bool
    ) -> None:
        """Make the files part of the table, under names as Spark gives them, in place of the folders `replaces`.

        CommitError when that failed half-way; after any other error the table is as it was.
        """
        try:
            placed = self._place(files, suffix)
            if self._whole and mark_success:
                (self._data / _SUCCESS).touch()
        except OSError as error:
            raise QueryError(
                f"files of a write are not in its staging directory {self._root} any more: {error}."
            ) from error
        try:
            self._publish(placed, replaces, mark_success)
        except OSError as error:
            raise CommitError(
                f"{self.table} has a part of what was to be written, or none: {error}.",
                hint="Look at its files before you write again.",
            ) from error

    def _publish(self, placed: Sequence[Path], replaces: Iterable[str], mark_success: bool) -> None:
        """From here on others see what changes."""
        if self._whole:
            self._replace_table()
            return
        replaced = [folder for folder in dict.fromkeys(replaces) if folder]
        for folder in replaced:
            _put(self._data / folder, self.table / folder)
        for file in placed:
            relative = file.relative_to(self._data)
            if not any(relative.is_relative_to(folder) for folder in replaced):
                (self.table / relative).parent.mkdir(parents=True, exist_ok=True)
                file.rename(self.table / relative)
        if mark_success:
            (self.table / _SUCCESS).touch()

    def _place(self, files: Iterable[Written], suffix: str) -> list[Path]:
        """Give the files of the attempts that counted their names and folders, still out of sight."""
        job = uuid.uuid4()
        streams: dict[tuple[str, str], int] = {}
        placed = []
        for file in sorted(files, key=lambda file: file.file):
            source = Path(file.file)
            stream, _, number = source.stem.split("-")
            split = streams.setdefault((source.parent.name, stream), len(streams))
            folder = self._data / file.partition
            folder.mkdir(parents=True, exist_ok=True)
            separator = "." if file.partition else "-"
            target = folder / f"part-{split:05}-{job}{separator}c{number}{suffix}"
            if target.exists():
                raise QueryError(f"two files of one write would be called {target.name}.")
            source.rename(target)
            placed.append(target)
        return placed

    def _replace_table(self) -> None:
        if self.table.exists():
            shutil.copymode(self.table, self._data)
            exchange(self._data, self.table)
            return
        try:
            self._data.rename(self.table)
        except OSError as error:
            raise DataError(f"{self.table} appeared while it was being written: {error}.") from error

    def _remove_abandoned(self) -> None:
        for found in self._home.glob(f"{self._prefix}*"):
            try:
                lock = os.open(found / _LOCK, os.O_RDWR)
            except OSError:
                # Somebody is about to begin there, or ended while beginning.
                if _age_seconds(found) > _UNLOCKED_SECONDS:
                    shutil.rmtree(found, ignore_errors=True)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(found)
            except BlockingIOError:
                pass
            finally:
                os.close(lock)


def _locked_file(path: Path) -> int:
    """A descriptor of a new file at `path`. Nobody ever sees the file without its lock, which would mean that its owner
    has gone."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove(staging: Path) -> None:
    """Remove a staging directory, its lock last: without it, what is left would look like that of a new writer."""
    with suppress(OSError):  # another writer may be removing it, too
        for part in staging.iterdir():
            if part.name != _LOCK:
                shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(staging, ignore_errors=True)


def _age_seconds(directory: Path) -> float:
    try:
        return time.time() - directory.stat().st_mtime
    except OSError:
        return 0.0


def can_be_replaced(table: Path) -> bool:
    """Whether the directory itself can be exchanged for another: no mount point, and its parent is ours to change."""
    return not table.exists() or (not table.is_mount() and os.access(table.parent, os.W_OK | os.X_OK))


def exchange(new: Path, old: Path) -> None:
    """Let the two directories change places."""
    if _renameat2(new, old):
        return
    # A file system that cannot do it in one step: for a moment neither is at `old`.
    aside = new.with_name(f"{new.name}-aside")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _put(new: Path, old: Path) -> None:
    """`new` in place of `old`; either may be missing."""
    if not new.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        shutil.copymode(old, new)
        exchange(new, old)
    else:
        old.parent.mkdir(parents=True, exist_ok=True)
        new.rename(old)


_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def _renameat2(first: Path, second: Path) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), str(second))
