# SPDX-License-Identifier: Apache-2.0
"""What arrives at a server is what was sent: every chunk by its checksum, a commit by all that its indexes name."""

from __future__ import annotations

import pyarrow as pa

from volley.ids import AttemptId
from volley.rpc.service import DAMAGED_ON_WAY, CommittedBlock, PushChunks, PushedChunk
from volley.shuffle.base import Block
from volley.shuffle.chunks import Index, checksum_of
from volley.shuffle.service.ledger import Attempt, Refusal


def pieces(message: PushChunks, payload: pa.Buffer) -> list[tuple[PushedChunk, pa.Buffer]]:
    """The chunks with their bytes, each of its own memory; refused when one is not what was sent."""
    found = []
    start = 0
    for chunk in message.chunks:
        # No further than to the end of what came, where a slice would be an error of its own.
        data = payload.slice(start, min(chunk.size_bytes, payload.size - start))
        if data.size != chunk.size_bytes or checksum_of(data) != chunk.checksum:
            raise Refusal(
                DAMAGED_ON_WAY,
                f"chunk {chunk.sequence} of partition {chunk.partition} of {message.attempt} is not what was sent.",
            )
        found.append((chunk, data if len(message.chunks) == 1 else pa.py_buffer(data.to_pybytes())))
        start += chunk.size_bytes
    if start != payload.size:
        raise Refusal(DAMAGED_ON_WAY, f"{message.attempt} sent more than it said.")
    return found


def check_complete(attempt: Attempt, blocks: dict[int, CommittedBlock]) -> None:
    """Every chunk that the indexes name is here and is what they say, and no other is."""
    named = {
        (partition, number): chunk
        for partition, block in blocks.items()
        for number, chunk in enumerate(index_of(attempt.id, block).chunks)
    }
    for key, chunk in named.items():
        stored = attempt.chunks.get(key)
        if stored is None or (stored.size_bytes, stored.checksum) != (chunk.size_bytes, chunk.checksum):
            raise Refusal(
                DAMAGED_ON_WAY, f"{attempt.id}: chunk {key[1]} of partition {key[0]} did not arrive."
            )
    if len(named) != len(attempt.chunks):
        raise Refusal(DAMAGED_ON_WAY, f"{attempt.id}: more chunks arrived than it commits.")


def index_of(attempt: AttemptId, block: CommittedBlock) -> Index:
    name = Block(attempt, block.partition, "", 0, 0, checksum_of(block.index))
    return Index.unpack(block.index, name)
