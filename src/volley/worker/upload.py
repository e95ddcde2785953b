# SPDX-License-Identifier: Apache-2.0
"""Uploads the files of an attempt that writes to an object store. The commit completes the uploads."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from volley.errors import QueryError
from volley.ids import AttemptId
from volley.plan.nodes import UploadTarget, WriteFiles
from volley.storage.uploads import Folder, Upload, Uploads, object_name
from volley.worker.file_writer import Written

_log = logging.getLogger(__name__)


class Uploader:
    """The uploads of one attempt. Used by several threads."""

    def __init__(self, node: WriteFiles, target: UploadTarget, attempt: AttemptId) -> None:
        self._folder = Folder.of(node.directory)
        self._target = target
        self._task = attempt.task.task
        self._uploads = Uploads(target.store, self._folder.bucket)
        self._lock = threading.Lock()
        self._made: list[Upload] = []
        self._ended = False

    def upload(self, written: Written) -> Written:
        """Send a finished file and remove it here. Its name becomes the upload."""
        file = Path(written.file)
        stream, _, number = file.stem.split("-")
        name = object_name(
            self._target.job, self._task, int(stream), int(number), self._target.suffix, written.partition
        )
        made = self._uploads.stage(file, self._folder.key(name, written.partition))
        file.unlink()
        with self._lock:
            self._made.append(made)
            ended = self._ended
        if ended:
            self.abort()
        return replace(written, file=made.to_text())

    def abort(self) -> None:
        """Abort all uploads, also those in progress. The end of the write aborts what cannot be aborted here."""
        with self._lock:
            self._ended = True
            made, self._made = self._made, []
        for upload in made:
            try:
                self._uploads.abort(upload.key, upload.id)
            except QueryError as error:
                _log.warning("an upload could not be aborted: %s", error)
