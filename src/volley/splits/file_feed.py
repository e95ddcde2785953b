# SPDX-License-Identifier: Apache-2.0
"""Files of the driver that tasks in other processes read whole: feeds whose splits are the pieces of a file.

Each worker reads such a feed once, for all of its tasks (`worker.python.files`).
"""

from __future__ import annotations

import os
import weakref
from typing import IO

from volley.splits.feed import Share

FIRST_FILE_FEED = 1_000_000
"""Feeds of scans have smaller numbers."""

PIECE_BYTES = 2**20
# A message holds the pieces as text, and many workers may ask at the same time.
_MOST_PIECES = 4


class FileFeed:
    """An open file, which ends with the last reference to this. It can be read to its end, even if it is removed."""

    def __init__(self, file: IO[bytes]) -> None:
        """`file` may be closed."""
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def take(self, after: int, credits: int) -> Share:
        """Up to `credits` pieces from position `after`. Blocks while they are read."""
        pieces = -(-self.size_bytes // PIECE_BYTES)
        end = min(pieces, after + max(1, min(credits, _MOST_PIECES)))
        taken = [self.piece(number) for number in range(after, end)]
        return Share(tuple(taken), max(after, end), end >= pieces)

    def piece(self, number: int) -> bytes:
        return os.pread(self._descriptor, PIECE_BYTES, number * PIECE_BYTES)
