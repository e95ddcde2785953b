# SPDX-License-Identifier: Apache-2.0
"""The commit of a write to an object store: uploads of all files, completed when all of them are there.

    workers    stage the parts of their files under final names, which have the id of the write in them
    commit     completes the uploads of the attempts that counted, then marks the folder with _SUCCESS
    the end    aborts every other upload of the write; the next write those of a program that was killed, after a day

Before the commit nothing is visible. A store has no step that makes several objects visible at once: a reader during
the commit may see some of the files, and `_SUCCESS` says that all are there, as with the committers of S3A.
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
            self._uploads.abort_job(f"{self._folder.prefix}/", self.job)
        except QueryError as failure:
            _log.warning("uploads of a write could not be aborted: %s", failure)

    def stage(self, file: Path, name: str) -> Upload:
        """Send a file that the driver itself made."""
        return self._uploads.stage(file, self._folder.key(name))

    def commit(self, files: Iterable[Written], mark_success: bool) -> None:
        """Let the files appear. CommitError when that failed half-way."""
        uploads = [Upload.from_text(file.file) for file in files]
        try:
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="volley-commit") as pool:
                list(pool.map(self._uploads.complete, uploads))
            if mark_success:
                self._uploads.put_empty(self._folder.key(_SUCCESS))
        except QueryError as error:
            # A store that does not answer to the first would let each of the others wait for all its attempts.
            with suppress(QueryError):
                for upload in uploads:
                    self._uploads.delete(upload.key)
            raise CommitError(
                f"{self.url} may have a part of what was to be written: {error.message}.",
                hint="Look at its files before you write again.",
            ) from error
