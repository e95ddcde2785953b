# SPDX-License-Identifier: Apache-2.0
"""Takes finished stages over from earlier runs of the same program, and keeps those of this one for later runs."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from volley.errors import DataError, QueryError
from volley.events import TaskMetrics
from volley.formats.file_source import object_name
from volley.ids import AttemptId, QueryId, StageId
from volley.plan.nodes import DataFile
from volley.process.log_format import about
from volley.process.loop import Work, run_blocking
from volley.rpc.codec import decode, encode
from volley.rpc.messages import KeptOutputs, TaskDone
from volley.rpc.shuffle_messages import FindStage, KeepStage
from volley.shuffle.base import CheckpointStore
from volley.stages.fingerprint import files_of, stage_key
from volley.stages.graph import Stage
from volley.stages.layout import Layout
from volley.storage.objects import object_version

_log = logging.getLogger(__name__)
# Concurrent requests for the versions of objects.
_READERS = 16


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of a session.

    `secret` gives access to it. Stages in it are kept for `seconds` after their last use. `versions` are those of the
    programs that must be the same in every run. Without `takes_over`, all stages are computed, and kept in place of
    earlier ones.
    """

    store: CheckpointStore
    secret: str
    seconds: float
    versions: tuple[str, ...]
    takes_over: bool = True

    async def key_of(self, stage: Stage, layout: Layout, inputs: Mapping[int, str | None]) -> str | None:
        """The key of a stage; None if its rows may differ the next time, or its files are not those of the plan."""
        versions = await run_blocking(Work.STORE, _file_versions, files_of(stage))
        if versions is None:
            return None
        return stage_key(stage, layout, inputs, (*self.versions, *versions))

    async def find(self, key: str) -> tuple[TaskDone, ...] | None:
        """The outputs of a stage by task, if an earlier run has left them. Readers notice if they are gone."""
        if not self.takes_over:
            return None
        try:
            wanted = FindStage(self.secret, key, self.seconds)
            record = await run_blocking(Work.STORE, self.store.find_stage, wanted)
            kept = decode(record, KeptOutputs) if record else None
        except (QueryError, OSError) as error:
            _log.warning("a stage could not be looked up in the checkpoint: %s", error)
            return None
        return kept.outputs if kept is not None and kept.key == key else None

    async def keep(self, key: str, stage: StageId, outputs: Sequence[TaskDone]) -> None:
        """Keep the outputs of a stage for a later run. If that fails, that run computes it."""
        if not all(block.outlives_worker for done in outputs for block in done.blocks):
            return
        kept = QueryId(f"{stage.query}-s{stage.stage}", secrets.token_hex(16))
        record = KeptOutputs(key, tuple(_of_query(done, kept) for done in outputs))
        attempts = tuple(done.attempt for done in outputs)
        locations = {block.location for done in outputs for block in done.blocks}
        try:
            message = KeepStage(self.secret, key, kept, attempts, encode(record), self.seconds)
            await run_blocking(Work.STORE, self.store.keep_stage, message, locations)
        except (QueryError, OSError) as error:
            _log.warning("%s is not kept in the checkpoint: %s", stage, error, extra=about(stage.query))


def _of_query(done: TaskDone, query: QueryId) -> TaskDone:
    """The same output under the id of another query, without what only a report needs."""
    attempt = _attempt_of(done.attempt, query)
    blocks = tuple(replace(block, attempt=_attempt_of(block.attempt, query)) for block in done.blocks)
    metrics = TaskMetrics(done.metrics.rows, done.metrics.size_bytes, done.metrics.seconds)
    return TaskDone(attempt, blocks, metrics, done.made_by)


def _attempt_of(attempt: AttemptId, query: QueryId) -> AttemptId:
    return replace(attempt, task=replace(attempt.task, stage=replace(attempt.task.stage, query=query)))


def _file_versions(files: Sequence[DataFile]) -> tuple[str, ...] | None:
    """A version for files in object stores. None if a file is not the one that was planned.

    Sizes and times are in the plan. Spark may have planned with a list that it made earlier, so they are compared.
    """
    local = [file for file in files if not file.store]
    remote = [file for file in files if file.store]
    try:
        for file in local:
            found = Path(file.path).stat()
            modified_ms = found.st_mtime_ns // 10**6
            # A plan over the log of a Delta table does not know the times of its files, which never change.
            if found.st_size != file.size_bytes or file.modified_ms not in (0, modified_ms):
                return None
        with ThreadPoolExecutor(_READERS, thread_name_prefix="volley-versions") as pool:
            versions = list(pool.map(_object_version, remote))
    except (OSError, DataError):
        return None
    return (hashlib.sha256("\n".join(versions).encode()).hexdigest(),)


def _object_version(file: DataFile) -> str:
    return object_version(object_name(file))
