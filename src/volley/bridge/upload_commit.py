# SPDX-License-Identifier: Apache-2.0
"""The commit of a write to an object store: multipart uploads that are completed once all files are staged.

    workers    stage the parts of their files under final names, which have the id of the write in them
    commit     completes the uploads of the attempts that counted, deletes the objects that they replace, then marks
               the folder with _SUCCESS
    the end    aborts every other upload of the write; the next write those of a program that was killed, after a day

Before the commit nothing is visible. A store has no step that makes several objects visible at once: a reader during
the commit may see some of the files, and `_SUCCESS` says that all are there, as with the committers of S3A. A commit
that replaces objects removes `_SUCCESS` first. The old ones go last: until all new ones are there, the commit can be
taken back, and no crash loses rows.

Commits that replace objects of one table come one after the other: each holds the object `_volley-commit`, which is
created on condition that there is none. So the last one wins, and no two leave rows of both. A commit renews its lock,
at the latest before it deletes the old objects; one that finds that it has lost it takes its own objects back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from volley.errors import CommitError, QueryError
from volley.storage.locks import NoLock, ObjectLock
from volley.storage.uploads import KEYS_A_REQUEST, Folder, Upload, Uploads
from volley.worker.file_writer import Written

_log = logging.getLogger(__name__)
_SUCCESS = "_SUCCESS"
_LOCK = "_volley-commit"
_LOCK_WAIT_SECONDS = 120.0
# Longer than any call to the store with all its attempts. Between two of them a commit can renew its lock.
_LOCK_STALE_SECONDS = 900.0
_AT_A_TIME = 8


class UploadStaging:
    """The uploads of one write to the folder `url` of a store.

    Leaving the `with` block aborts those that were not committed.
    """

    def __init__(self, store: str, url: str) -> None:
        self.job = str(uuid.uuid4())
        self.store = store
        self.url = url
        self._folder = Folder.of(url)
        self._uploads = Uploads(store, self._folder.bucket)

    def __enter__(self) -> UploadStaging:
        self._uploads.abort_abandoned(f"{self._folder.prefix}/")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._uploads = Uploads(self.store, self._folder.bucket)
            self._uploads.abort_job(f"{self._folder.prefix}/", self.job)
        except QueryError as failure:
            _log.warning("uploads of a write could not be aborted: %s", failure)

    def stage(self, file: Path, name: str) -> Upload:
        """Upload a file that the driver made itself."""
        return self._uploads.stage(file, self._folder.key(name))

    def commit(self, files: Iterable[Written], mark_success: bool, replaces: Iterable[str] = ()) -> None:
        """Make the files visible in place of those in the folders `replaces`; an empty name is the whole table.

        CommitError if that failed half-way.
        """
        # Use fresh credentials: those from the start of the query may have expired.
        self._uploads = Uploads(self.store, self._folder.bucket)
        uploads = [Upload.from_text(file.file) for file in files]
        folders = list(replaces)
        if not folders:
            self._publish(uploads, mark_success, folders, NoLock())
            return
        lock = ObjectLock(self._uploads, self._folder.key(_LOCK), self.job, _LOCK_STALE_SECONDS)
        lock.acquire(_LOCK_WAIT_SECONDS)
        try:
            self._publish(uploads, mark_success, folders, lock)
        finally:
            try:
                lock.release()
            except QueryError as error:
                _log.warning("the lock of %s could not be released: %s", self.url, error)

    def _publish(
        self,
        uploads: Sequence[Upload],
        mark_success: bool,
        replaces: Sequence[str],
        lock: ObjectLock | NoLock,
    ) -> None:
        def complete(upload: Upload) -> None:
            lock.keep()
            self._uploads.complete(upload)

        marker = self._folder.key(_SUCCESS)
        unmarked = False
        try:
            old = self._old(replaces)
            if old and mark_success and marker in self._uploads.keys(marker):
                self._uploads.delete(marker)
                unmarked = True
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="volley-commit") as pool:
                list(pool.map(complete, uploads))
            # Without the lock, another commit may have listed, or deleted, what this one has completed.
            lock.renew()
        except QueryError as error:
            # If the store does not answer the first request, do not let each of the others time out too.
            with suppress(QueryError):
                for upload in uploads:
                    self._uploads.delete(upload.key)
                if unmarked:
                    lock.renew()
                    self._uploads.put_empty(marker)
            raise CommitError(
                f"{self.url} may have a part of what was to be written: {error.message}.",
                hint="Look at its files before you write again.",
            ) from error
        try:
            for first in range(0, len(old), KEYS_A_REQUEST):
                lock.keep()
                self._uploads.delete_all(old[first : first + KEYS_A_REQUEST])
            lock.keep()
            if mark_success:
                self._uploads.put_empty(marker)
        except QueryError as error:
            raise CommitError(
                f"{self.url} has what was written, and may still have what it replaces: {error.message}.",
                hint=f"Delete the files without {self.job} in their names, or write again.",
            ) from error

    def _old(self, replaces: Iterable[str]) -> list[str]:
        """The objects in these folders of the table."""
        prefixes = dict.fromkeys(f"{self._folder.key('', folder)}/" for folder in replaces)
        lock = self._folder.key(_LOCK)
        return [key for prefix in prefixes for key in self._uploads.keys(prefix) if key != lock]
