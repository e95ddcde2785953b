# SPDX-License-Identifier: Apache-2.0
"""Verifies what arrives at a server: each chunk by its checksum, and a commit by the chunks that its indexes list."""

from __future__ import annotations

import pyarrow as pa

from volley.ids import AttemptId
from volley.rpc.shuffle_messages import DAMAGED_ON_WAY, CommittedBlock, PushChunks, PushedChunk
from volley.shuffle.base import Block
from volley.shuffle.chunks import Index, checksum_of
from volley.shuffle.service.ledger import Attempt, Refusal


def split_payload(message: PushChunks, payload: pa.Buffer) -> list[tuple[PushedChunk, pa.Buffer]]:
    """Split a push into chunks, each with its own buffer. Refuses it if a checksum does not match."""
    found = []
    start = 0
    for chunk in message.chunks:
        # Slicing past the end of the payload would raise.
        data = payload.slice(start, min(chunk.size_bytes, payload.size - start))
        if data.size != chunk.size_bytes or checksum_of(data) != chunk.checksum:
            raise Refusal(
                DAMAGED_ON_WAY,
                f"chunk {chunk.sequence} of partition {chunk.partition} of {message.attempt} was damaged in transit.",
            )
        found.append((chunk, data if len(message.chunks) == 1 else pa.py_buffer(data.to_pybytes())))
        start += chunk.size_bytes
    if start != payload.size:
        raise Refusal(DAMAGED_ON_WAY, f"{message.attempt} sent more bytes than it announced.")
    return found


def check_complete(attempt: Attempt, blocks: dict[int, CommittedBlock]) -> None:
    """Refuse a commit unless exactly the chunks that its indexes list have arrived."""
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
        raise Refusal(DAMAGED_ON_WAY, f"{attempt.id}: more chunks arrived than its commit lists.")


def index_of(attempt: AttemptId, block: CommittedBlock) -> Index:
    name = Block(attempt, block.partition, "", 0, 0, checksum_of(block.index))
    return Index.unpack(block.index, name)
