# SPDX-License-Identifier: Apache-2.0
"""What a server must not forget: an append-only file of checked records.

    record    magic, length, xxh3 of the payload, xxh3 of the three (32 bits), payload

A record is on disk when `append` returns. A torn one at the end was never acknowledged. A damaged one is left out and
the next is searched for: what it said is missing, which readers notice, and nothing else is.
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
from volley.shuffle.service.directories import sync_directory

_HEAD = struct.Struct("<4sIQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"VJ01"


class Journal:
    """Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._descriptor).st_size
        self.damaged = 0
        """Records that were left out when it was read."""

    @property
    def size_bytes(self) -> int:
        return self._end

    def read(self) -> Iterator[Any]:
        """The records, oldest first. What is torn or damaged at the end is cut off."""
        data = self._path.read_bytes()
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
        """Returns when the record would survive the end of this machine; OSError when it would not."""
        data = _packed(record)
        try:
            write_at(self._descriptor, data, self._end)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)

    def replace(self, records: Iterable[Any]) -> None:
        """These records instead of all that there are, at once or not at all."""
        draft = self._path.with_suffix(".new")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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
    """Of the record that begins there; None when there is none, or not all of it."""
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
    """Whether what begins there is as long as it says, so that it is damaged rather than torn."""
    if len(data) - position < _HEAD.size + _CHECK.size:
        return False
    _, length, _ = _HEAD.unpack_from(data, position)
    return bool(len(data) - position - _HEAD.size - _CHECK.size >= length)
