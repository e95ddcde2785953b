# SPDX-License-Identifier: Apache-2.0
"""Stages that are kept in an object store beyond the end of their query.

    <root>/checkpoints/<id>/<key>_<query>_s<stage>_<seconds>      a signature, and the record of the stage

The outputs stay where their query wrote them. As long as a record names a query, nobody removes its folder, except for
stages that no record names. Records are signed with the secret of their checkpoint: whoever can write to the folder but
has no token cannot make others read something else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from volley.ids import QueryId
from volley.rpc.shuffle_messages import CheckpointInfo, FindStage, KeepStage
from volley.shuffle.checkpoint_ids import public_id
from volley.shuffle.objects import Folder

FOLDER = "checkpoints"
_SIGNATURE_BYTES = 32
_RECORD = re.compile(r"([0-9a-f]{12})/([0-9a-f]{64})_([A-Za-z0-9]+)_(s\d+e\d+)_(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class KeptRecord:
    """The record of one stage, as its name tells. `path` is relative to the root."""

    path: str
    id: str
    key: str
    query: str
    stage: str
    seconds: float
    written_at: float

    @classmethod
    def parse(cls, path: str, written_at: float | None) -> KeptRecord | None:
        """`path` is relative to the folder of all checkpoints; None for what is not a record."""
        found = _RECORD.fullmatch(path)
        if found is None or written_at is None:
            return None
        id, key, query, stage, seconds = found.groups()
        return cls(f"{FOLDER}/{path}", id, key, query, stage, float(seconds), written_at)

    def is_over(self, now: float) -> bool:
        return now - self.written_at > self.seconds


class ObjectCheckpoints:
    """The checkpoints in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def keep(self, stage: KeepStage) -> None:
        """Write the record of a stage in place of earlier ones. Times of files may be too coarse to order them."""
        made_by = stage.attempts[0].task.stage
        name = f"{stage.key}_{made_by.query}_s{made_by.stage}e{made_by.epoch}_{int(stage.seconds)}"
        path = self._folder.path(FOLDER, public_id(stage.checkpoint), name)
        earlier = [
            self._folder.path(record.path)
            for record in self.records(public_id(stage.checkpoint))
            if record.key == stage.key
        ]
        self._folder.write(path, _sign(stage.checkpoint, name, stage.record) + stage.record)
        for other in earlier:
            if other != path:
                self._folder.delete(other)

    def find(self, wanted: FindStage) -> bytes | None:
        found = [
            record
            for record in self.records(public_id(wanted.checkpoint))
            if record.key == wanted.key and not record.is_over(time.time())
        ]
        for record in sorted(found, key=lambda record: -record.written_at):
            with suppress(OSError):
                path = self._folder.path(record.path)
                data = self._folder.read_all(path)
                signature, content = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
                name = record.path.rpartition("/")[2]
                if hmac.compare_digest(signature, _sign(wanted.checkpoint, name, content)):
                    # Restart its retention time.
                    self._folder.write(path, data)
                    return content
        return None

    def list(self) -> tuple[CheckpointInfo, ...]:
        by_id: dict[str, list[KeptRecord]] = {}
        for record in self.records():
            by_id.setdefault(record.id, []).append(record)
        return tuple(
            CheckpointInfo(id, len(records), self._size_bytes(records), _seconds_left(records))
            for id, records in sorted(by_id.items())
        )

    def drop(self, checkpoint: str) -> set[str]:
        """Remove the records of a checkpoint. Returns the queries that they named."""
        id = public_id(checkpoint)
        queries = {record.query for record in self.records(id)}
        self._folder.remove(self._folder.path(FOLDER, id))
        return queries

    def records(self, id: str = "") -> Iterator[KeptRecord]:
        """The records of a checkpoint, or of all."""
        parts = (FOLDER, id) if id else (FOLDER,)
        prefix = f"{id}/" if id else ""
        for path, written_at in self._folder.contents(self._folder.path(*parts)).items():
            if record := KeptRecord.parse(prefix + path, written_at):
                yield record

    def kept_stages(self, now: float) -> dict[str, set[str]]:
        """The stages that records name, by query. Removes records whose time was up by `now`, of the store's clock."""
        kept: dict[str, set[str]] = {}
        for record in self.records():
            if record.is_over(now):
                self._folder.delete(self._folder.path(record.path))
            else:
                kept.setdefault(record.query, set()).add(record.stage)
        return kept

    def _size_bytes(self, records: Sequence[KeptRecord]) -> int:
        folders = {self._folder.path(record.query, record.stage) for record in records}
        return sum(map(self._folder.size_bytes, folders))


def made_by(kept: QueryId) -> str:
    """The query that wrote the outputs of a kept stage."""
    return kept.value.partition("-")[0]


def _seconds_left(records: list[KeptRecord]) -> float:
    return max(0.0, max(record.written_at + record.seconds for record in records) - time.time())


def _sign(checkpoint: str, name: str, record: bytes) -> bytes:
    return hmac.new(bytes.fromhex(checkpoint), name.encode() + b"\0" + record, hashlib.sha256).digest()
