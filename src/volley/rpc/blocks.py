# SPDX-License-Identifier: Apache-2.0
"""Blocks of exchanged data as they are named in messages: who wrote them, where they are, what a reader must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from volley.fields import Checksum, Count, Matches
from volley.ids import AttemptId


@dataclass(frozen=True, order=True)
class Block:
    """One partition of one attempt's output: its name, where it is, and what a reader must find there.

    `location` and `handle` mean something to the store that made the block and to no one else. `size_bytes` is what the
    rows take in memory; `checksum` covers all that the store keeps of them; `spilled_bytes` is what the store wrote of
    them to disk because there was no room in memory. One that `outlives_worker` is still there when the worker that
    wrote it has gone.
    """

    attempt: AttemptId
    partition: Count
    location: str
    rows: Count
    size_bytes: Count
    checksum: Checksum = 0
    handle: str = ""
    spilled_bytes: Count = 0
    outlives_worker: bool = False

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.attempt}"


@dataclass(frozen=True)
class BlockRequest:
    """What one worker asks of another: these blocks, one after the other in one stream.

    `skip_chunks` of the first are not wanted any more: the reader has them from a stream that broke. `codec`
    (none, lz4, zstd) is how to pack on the way what is not packed yet.
    """

    blocks: tuple[Block, ...]
    skip_chunks: Count = 0
    codec: Annotated[str, Matches("none|lz4|zstd")] = "none"
