# SPDX-License-Identifier: Apache-2.0
"""What a task was given, so that every attempt at it reads the same.

A ledger is a sequence of payloads that only grows. An attempt reads it from its beginning, asks for more at its end,
and is told when there is no more: then the ledger is closed, for this attempt and for all that may follow it. Reading
starts at any place that was told before, so nothing is lost with an answer.

The payloads of a million splits would fill the coordinator's memory: past a megabyte they lie in a file without a name.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable

_IN_MEMORY_BYTES = 2**20
_LENGTH = struct.Struct("<I")


class Ledger:
    """The splits of one task. `closed`: it gets no more."""

    def __init__(self) -> None:
        self.closed = False
        self.splits = 0
        self.size_bytes = 0
        """What the hints say of the splits' sizes."""
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
        """Up to so many splits and about so many bytes of them, from place `after` on, and the place behind them."""
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
        """Let go of the payloads: nobody will read them again."""
        self._file.close()
