# SPDX-License-Identifier: Apache-2.0
"""Converts the state of a server to journal records and back.

records_of    ledger  -> the records that are needed to restore it; of an ended query only its end
recover       records -> the ledger and the positions of chunks, as of the last record
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from volley.ids import AttemptId, QueryId
from volley.rpc.shuffle_messages import (
    AttemptCommitted,
    ChunkPlace,
    CommittedBlock,
    PlacedBlock,
    QueryBegan,
    QueryEnded,
    StageKept,
)
from volley.shuffle.service.ledger import Attempt, Ledger, Query
from volley.shuffle.service.push_validation import index_of
from volley.shuffle.service.storage import Storage


def record_of(attempt: Attempt, blocks: Iterable[CommittedBlock]) -> AttemptCommitted:
    """The journal record for the commit of an attempt."""
    places: dict[int, list[ChunkPlace]] = {}
    for (partition, _), stored in sorted(attempt.chunks.items(), key=lambda item: item[0]):
        if stored.place is not None:
            places.setdefault(partition, []).append(stored.place)
    placed = (PlacedBlock(block, tuple(places.get(block.partition, ()))) for block in blocks)
    return AttemptCommitted(attempt.id, tuple(placed))


def records_of(ledger: Ledger) -> Iterator[Any]:
    for query, code in ledger.over():
        yield QueryEnded(query, code)
    for known in ledger.queries.values():
        yield QueryBegan(known.id, known.application)
        for attempt in sorted(known.attempts.values(), key=lambda attempt: attempt.committed_at):
            if attempt.blocks is not None:
                yield record_of(attempt, attempt.blocks.values())
        if known.kept is not None:
            yield known.kept


def recover(records: Iterable[Any], ledger: Ledger, storage: Storage) -> None:
    """Fill an empty ledger and storage. Removes files that no record names."""
    for record in records:
        match record:
            case QueryBegan(query, application):
                ledger.begin(query, application)
            case QueryEnded(query, code):
                # Earlier records restored its commits; the end of the query removes them.
                if known := ledger.end(query, code):
                    _forget(query, known, storage)
            case AttemptCommitted(id, blocks) if id.query in ledger.queries:
                _recover_attempt(id, blocks, ledger, storage)
            case StageKept(kept) if kept in ledger.queries:
                ledger.queries[kept].kept = record
    storage.remove_unknown()


def _forget(query: QueryId, known: Query, storage: Storage) -> None:
    for attempt in known.attempts.values():
        storage.drop(attempt.chunks.values())
    storage.drop_query(query)


def _recover_attempt(id: AttemptId, blocks: Sequence[PlacedBlock], ledger: Ledger, storage: Storage) -> None:
    indexes = {placed.block.partition: index_of(id, placed.block) for placed in blocks}
    if any(len(placed.places) != len(indexes[placed.block.partition].chunks) for placed in blocks):
        # It was only in memory. Readers are told that it is missing.
        return
    # A replica that came later is a second record, with what was there before.
    attempt = ledger.replica(id)
    for placed in blocks:
        partition = placed.block.partition
        if partition in (attempt.blocks or {}):
            continue
        for number, chunk in enumerate(indexes[partition].chunks):
            attempt.chunks[partition, number] = storage.restore(
                id.task.stage, partition, placed.places[number], chunk.size_bytes, chunk.checksum
            )
    ledger.commit(
        attempt, (attempt.blocks or {}) | {placed.block.partition: placed.block for placed in blocks}
    )
