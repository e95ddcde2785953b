# SPDX-License-Identifier: Apache-2.0
"""Blocks of exchanged data as messages describe them: who wrote them, where they are, what a reader must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from volley.field_types import Checksum, Count, Matches, Positive, Text
from volley.ids import AttemptId


@dataclass(frozen=True, order=True)
class Block:
    """One partition of one attempt's output: its identity, its location, and what a reader must find there.

    `location` and `handle` are meaningful only to the store that wrote the block. `size_bytes` is the size of the rows
    in memory. `checksum` covers the stored bytes. `spilled_bytes` is what the store wrote to disk for lack of memory. A
    block that `outlives_worker` can still be read after the worker that wrote it is gone.
    """

    attempt: AttemptId
    partition: Count
    location: Text
    rows: Count
    size_bytes: Count
    checksum: Checksum = 0
    handle: Text = ""
    spilled_bytes: Count = 0
    outlives_worker: bool = False

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.attempt}"


@dataclass(frozen=True)
class BlockRequest:
    """Asks another worker for these blocks, one after the other in one stream.

    Skip the first `skip_chunks` chunks: the reader already has them from a stream that broke. `codec` (none, lz4,
    zstd) compresses uncompressed chunks in transit. Messages of the answer are no larger than `max_message_bytes`, or
    than the holder allows.
    """

    blocks: tuple[Block, ...]
    skip_chunks: Count = 0
    codec: Annotated[str, Matches("none|lz4|zstd")] = "none"
    max_message_bytes: Positive = 2**63 - 1
