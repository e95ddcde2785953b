# SPDX-License-Identifier: Apache-2.0
"""Staging and commit of a write: files stay invisible until one commit moves them into the table.

    new table, or all of it replaced       <parent>/.volley-<name>-<id>/data   becomes  <parent>/<name>
    some folders replaced                  <table>/.volley-<id>/data/<folder>  becomes  <table>/<folder>
    rows added                             <table>/.volley-<id>/data/...       files move to <table>/...

Replacing is one exchange of two directories, which Linux does in one step, so a reader, or whoever finds the table
after a crash, sees the old rows or the new ones. Names that begin with a dot are invisible to Spark's readers. The
staging directory of a process that was killed is removed by the next write to the same table: its lock is free then.

Commits of several writers to one table on a machine come one after the other: each locks the table's directory.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from volley.errors import CommitError, DataError, QueryError
from volley.worker.file_writer import Written

_SUCCESS = "_SUCCESS"
_STAGING = ".volley-"
_LOCK = "lock"
# A writer locks its directory right after creating it.
_UNLOCKED_SECONDS = 3600.0
# Far longer than a commit, which renames files.
_LOCK_WAIT_SECONDS = 120.0
_LOCK_STEP_SECONDS = 0.05


class Staging:
    """The staging directory of one write to `table`, removed when the `with` block ends.

    Each attempt creates its own directory in `tasks`.
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
        """Move the files into the table, with names like Spark's, in place of the folders `replaces`.

        CommitError if that failed half-way; after any other error the table is unchanged.
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
            with _locked_table(self.table):
                if not self._data.is_dir():
                    raise QueryError(f"another write has replaced {self.table} while this one was under way.")
                self._publish(placed, replaces, mark_success)
        except OSError as error:
            raise CommitError(
                f"{self.table} has a part of what was to be written, or none: {error}.",
                hint="Look at its files before you write again.",
            ) from error

    def _publish(self, placed: Sequence[Path], replaces: Iterable[str], mark_success: bool) -> None:
        """Change the table itself, visibly for others."""
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
        """Move the files of the winning attempts to their final names, still inside the staging directory."""
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
                # A writer that is just starting, or that was killed while starting.
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
    """A descriptor of a new, locked file at `path`.

    The file is never visible without its lock: an unlocked one is taken for abandoned.
    """
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        draft.rename(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _locked_table(table: Path) -> Iterator[None]:
    """Lock a table against other commits on this machine.

    A new table needs no lock: it appears in one step. QueryError if another commit holds the lock for too long.
    """
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            descriptor = os.open(table, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            yield
            return
        try:
            with suppress(OSError):  # a file system without locks
                while not _try_lock(descriptor):
                    if time.monotonic() > deadline:
                        raise QueryError(
                            f"another write has held the lock of {table} for {_LOCK_WAIT_SECONDS:.0f} s.",
                            hint=f"Write again when it has ended. `lsof {table}` lists the processes that may have it.",
                        )
                    time.sleep(_LOCK_STEP_SECONDS)
            # The previous holder of the lock may have replaced the directory.
            if table.exists() and os.fstat(descriptor).st_ino == table.stat().st_ino:
                yield
                return
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(staging: Path) -> None:
    """Remove a staging directory, its lock last: without it, what is left would look like that of a new writer."""
    with suppress(OSError):  # another writer may be removing it at the same time
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
    """Swap the two directories."""
    if _renameat2(new, old):
        return
    # This file system cannot swap atomically: for a moment nothing is at `old`.
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
