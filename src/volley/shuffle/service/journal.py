# SPDX-License-Identifier: Apache-2.0
"""The journal of a server: an append-only file of records with checksums.

    record    magic, length, xxh3 of the payload, xxh3 of the three (32 bits), payload

A record is durable when `append` returns. A torn record at the end was never acknowledged. A damaged record is skipped,
and reading resumes at the next intact one: only what that record said is lost, and readers notice it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from volley.errors import QueryError
from volley.rpc.codec import decode, encode
from volley.shuffle.disk import write_at
from volley.shuffle.service.directories import open_own, sync_directory

_HEAD = struct.Struct("<4sIQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"VJ01"


class Journal:
    """One thread at a time uses it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_own(path)
        self._end = os.fstat(self._descriptor).st_size
        self.damaged = 0
        """Damaged records that `read` skipped."""

    @property
    def size_bytes(self) -> int:
        return self._end

    def read(self) -> Iterator[Any]:
        """Yield the records, oldest first. Truncates what is torn or damaged at the end."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            data = file.read()
        position = good_end = 0
        while (position := data.find(_MAGIC, position)) >= 0:
            payload = _payload(data, position)
            if payload is None:
                position += 1
                continue
            if position > good_end:
                self.damaged += 1
            position = good_end = position + _HEAD.size + _CHECK.size + len(payload)
            try:
                yield decode(payload)
            except QueryError:
                self.damaged += 1
        if good_end < len(data):
            self.damaged += _is_whole(data, good_end)
            os.ftruncate(self._descriptor, good_end)
        self._end = good_end

    def append(self, record: Any) -> None:
        """Append a record durably: it survives a crash of the machine. OSError if that fails."""
        data = _packed(record)
        try:
            write_at(self._descriptor, data, self._end)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)

    def replace(self, records: Iterable[Any]) -> None:
        """Replace all records by these, atomically."""
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        descriptor = open_own(draft, os.O_EXCL)
        try:
            end = 0
            for record in records:
                data = _packed(record)
                end = write_at(descriptor, data, end)
            os.fsync(descriptor)
            draft.replace(self._path)
            sync_directory(self._path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._end = descriptor, end

    def close(self) -> None:
        os.close(self._descriptor)


def _packed(record: Any) -> bytes:
    payload = encode(record)
    head = _HEAD.pack(_MAGIC, len(payload), xxhash.xxh3_64_intdigest(payload))
    return head + _CHECK.pack(xxhash.xxh32_intdigest(head)) + payload


def _payload(data: bytes, position: int) -> bytes | None:
    """The payload of the record at `position`; None if there is no complete record."""
    start = position + _HEAD.size + _CHECK.size
    if start > len(data):
        return None
    head = data[position : position + _HEAD.size]
    if _CHECK.unpack_from(data, position + _HEAD.size) != (xxhash.xxh32_intdigest(head),):
        return None
    _, length, checksum = _HEAD.unpack(head)
    payload = data[start : start + length]
    return payload if len(payload) == length and xxhash.xxh3_64_intdigest(payload) == checksum else None


def _is_whole(data: bytes, position: int) -> bool:
    """Whether the record at `position` has its full length, so that it is damaged rather than torn."""
    if len(data) - position < _HEAD.size + _CHECK.size:
        return False
    _, length, _ = _HEAD.unpack_from(data, position)
    return bool(len(data) - position - _HEAD.size - _CHECK.size >= length)
