# SPDX-License-Identifier: Apache-2.0
"""The commit of a write to an object store: uploads of all files, completed when all of them are there.

    workers    stage the parts of their files under final names, which have the id of the write in them
    commit     completes the uploads of the attempts that counted, deletes the objects that they replace, then marks
               the folder with _SUCCESS
    the end    aborts every other upload of the write; the next write those of a program that was killed, after a day

Before the commit nothing is visible. A store has no step that makes several objects visible at once: a reader during
the commit may see some of the files, and `_SUCCESS` says that all are there, as with the committers of S3A. A commit
that replaces objects removes `_SUCCESS` first. The old ones go last: until all new ones are there, the commit can be
taken back, and no crash loses rows.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from volley.errors import CommitError, QueryError
from volley.storage.uploads import Folder, Upload, Uploads
from volley.worker.files import Written

_log = logging.getLogger(__name__)
_SUCCESS = "_SUCCESS"
_AT_A_TIME = 8


class UploadStaging:
    """Collects the uploads of one write to the folder `url` of a store; those that are not committed end with it."""

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
        """Send a file that the driver itself made."""
        return self._uploads.stage(file, self._folder.key(name))

    def commit(self, files: Iterable[Written], mark_success: bool, replaces: Iterable[str] = ()) -> None:
        """Let the files appear in place of what is in the folders `replaces`; an empty name is the whole table.

        CommitError when that failed half-way.
        """
        uploads = [Upload.from_text(file.file) for file in files]
        marker = self._folder.key(_SUCCESS)
        unmarked = False
        try:
            # With credentials of now: the query may have taken longer than those of its start are valid.
            self._uploads = Uploads(self.store, self._folder.bucket)
            old = self._old(replaces)
            if old and mark_success and marker in self._uploads.keys(marker):
                self._uploads.delete(marker)
                unmarked = True
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="volley-commit") as pool:
                list(pool.map(self._uploads.complete, uploads))
        except QueryError as error:
            # A store that does not answer to the first would let each of the others wait for all its attempts.
            with suppress(QueryError):
                for upload in uploads:
                    self._uploads.delete(upload.key)
                if unmarked:
                    self._uploads.put_empty(marker)
            raise CommitError(
                f"{self.url} may have a part of what was to be written: {error.message}.",
                hint="Look at its files before you write again.",
            ) from error
        try:
            self._uploads.delete_all(old)
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
        return [key for prefix in prefixes for key in self._uploads.keys(prefix)]
