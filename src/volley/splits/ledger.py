# SPDX-License-Identifier: Apache-2.0
"""The record of the splits that a task was given, so that every attempt at it reads the same ones.

A ledger is an append-only sequence of payloads. An attempt reads it from the beginning and asks for more at the end.
Once the task gets no more splits the ledger is closed, for this attempt and all later ones. Reading can start at any
position that was returned before, so a lost answer can be repeated.

The payloads of a million splits would fill the coordinator's memory: beyond a megabyte they go to an unnamed file.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable

_IN_MEMORY_BYTES = 2**20
_LENGTH = struct.Struct("<I")


class Ledger:
    """The splits of one task. `closed`: it gets no more splits."""

    def __init__(self) -> None:
        self.closed = False
        self.splits = 0
        self.size_bytes = 0
        """The sum of the splits' size hints."""
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        self._end = 0

    def append(self, payloads: Iterable[bytes], size_bytes: int) -> None:
        self._file.seek(self._end)
        for payload in payloads:
            self._file.write(_LENGTH.pack(len(payload)))
            self._file.write(payload)
            self._end += _LENGTH.size + len(payload)
            self.splits += 1
        self.size_bytes += size_bytes

    def read(self, after: int, splits: int, size_bytes: int) -> tuple[tuple[bytes, ...], int]:
        """Up to `splits` payloads, about `size_bytes` in total, from position `after`, and the position behind."""
        found: list[bytes] = []
        held = 0
        self._file.seek(after)
        while after < self._end and len(found) < splits and held < size_bytes:
            (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
            found.append(self._file.read(length))
            held += length
            after += _LENGTH.size + length
        return tuple(found), after

    def is_end(self, after: int) -> bool:
        return after >= self._end

    def close(self) -> None:
        """Free the payloads. Nothing can be read afterwards."""
        self._file.close()
