# SPDX-License-Identifier: Apache-2.0
"""What a server knows about the replicas of its blocks, and how it takes one of a block that it does not have."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from volley.ids import AttemptId
from volley.rpc.shuffle_messages import DAMAGED_ON_WAY, FULL, QUOTA, CommittedBlock, Replicate
from volley.shuffle.base import Block
from volley.shuffle.chunks import checksum_of
from volley.shuffle.service.journal import Journal
from volley.shuffle.service.ledger import Ledger, Query, Refusal
from volley.shuffle.service.placement import rank_servers
from volley.shuffle.service.push_validation import index_of
from volley.shuffle.service.recovery import record_of
from volley.shuffle.service.storage import NoRoom, Storage, Stored


@dataclass(frozen=True)
class Copy:
    """A block that needs replicas on `targets`, beside those on `holders`, which stay. `away` are its other holders."""

    block: Block
    holders: tuple[str, ...]
    away: tuple[str, ...]
    targets: tuple[str, ...]


class Replicas:
    """Uses the parts of a server's state, under its lock."""

    def __init__(
        self,
        lock: threading.RLock,
        ledger: Ledger,
        storage: Storage,
        journal: Journal,
        used: Counter[str],
        quota_bytes: int,
    ) -> None:
        self.lock = lock
        self.ledger = ledger
        self.storage = storage
        self.journal = journal
        self.used = used
        self.quota_bytes = quota_bytes

    def plan_copies(self, message: Replicate) -> list[Copy]:
        """The blocks that the server `message.here` has to send, also those that nobody can take."""
        with self.lock:
            known = [(id, self.ledger.queries[id]) for id in message.queries if id in self.ledger.queries]
            mine = [query for id, query in known if id.has_key_of(query.id)]
            return [copy for query in mine for copy in _plan_copies(query, message)]

    def held_blocks(self) -> set[tuple[AttemptId, int]]:
        """The blocks of running queries. An attempt that is not committed counts as one."""
        with self.lock:
            return {
                (attempt.id, partition)
                for query in self.ledger.queries.values()
                if query.kept is None
                for attempt in query.attempts.values()
                for partition in (attempt.blocks if attempt.blocks is not None else (-1,))
            }

    def set_holders(self, block: Block, holders: tuple[str, ...]) -> None:
        with self.lock:
            attempt = self.ledger.committed(block.attempt)
            if attempt is not None and attempt.blocks is not None and block.partition in attempt.blocks:
                found = attempt.blocks[block.partition]
                attempt.blocks[block.partition] = replace(found, holders=holders)

    def has(self, block: Block) -> bool:
        """Whether the block is here. Its caller locks."""
        attempt = self.ledger.committed(block.attempt)
        return attempt is not None and block.partition in (attempt.blocks or {})

    @contextmanager
    def open(self, block: Block) -> Iterator[Replica | None]:
        """A replica of a block, to be filled and committed; None if the block is here."""
        with self.lock:
            is_here = self.has(block)
        if is_here:
            yield None
            return
        replica = Replica(self, block)
        try:
            yield replica
        finally:
            replica.close()


class Replica:
    """The chunks of a block, in order, until `commit`."""

    def __init__(self, replicas: Replicas, block: Block) -> None:
        self._replicas = replicas
        self._block = block
        self._chunks: list[Stored] = []

    def add(self, data: pa.Buffer) -> None:
        """Append a chunk. Refused if there is no room."""
        storage = self._replicas.storage
        try:
            if not storage.reserve(data.size):
                raise Refusal(FULL, f"there is no room for a replica of {self._block}.")
        except NoRoom as error:
            raise Refusal(FULL, f"there is no room left on {error}.") from error
        stage = self._block.attempt.task.stage
        self._chunks.append(storage.put(stage, self._block.partition, data, checksum_of(data)))

    def commit(self, index: bytes, holders: tuple[str, ...]) -> None:
        """Publish the replica, if it is exactly the block. Refused beyond the quota; no effect if it came meanwhile."""
        id, partition = self._block.attempt, self._block.partition
        committed = CommittedBlock(partition, index, holders)
        named = index_of(id, committed).chunks if checksum_of(index) == self._block.checksum else None
        arrived = [(stored.size_bytes, stored.checksum) for stored in self._chunks]
        if named is None or [(chunk.size_bytes, chunk.checksum) for chunk in named] != arrived:
            raise Refusal(DAMAGED_ON_WAY, f"a replica of {self._block} was damaged in transit.")
        of = self._replicas
        size_bytes = sum(stored.size_bytes for stored in self._chunks)
        try:
            of.storage.keep(self._chunks)
            with of.lock:
                if of.has(self._block):
                    return
                application = of.ledger.query(id.query).application
                if of.quota_bytes and of.used[application] + size_bytes > of.quota_bytes:
                    raise Refusal(QUOTA, f"{application} has used its {of.quota_bytes} bytes.")
                attempt = of.ledger.replica(id)
                chunks = {(partition, number): stored for number, stored in enumerate(self._chunks)}
                blocks = {**(attempt.blocks or {}), partition: committed}
                record = record_of(replace(attempt, chunks={**attempt.chunks, **chunks}), blocks.values())
                of.journal.append(record)
                attempt.chunks |= chunks
                of.ledger.commit(attempt, blocks)
                of.used[application] += size_bytes
                self._chunks = []
        except (NoRoom, OSError) as error:
            raise Refusal(FULL, f"a replica of {self._block} cannot be kept: {error}.") from error

    def close(self) -> None:
        """Drop what was not committed."""
        self._replicas.storage.drop(self._chunks)


def _plan_copies(query: Query, message: Replicate) -> Iterator[Copy]:
    away = {*message.gone, *message.leaving}
    for attempt in query.attempts.values():
        for found in (attempt.blocks or {}).values():
            if not away.intersection(found.holders):
                continue
            sources = [holder for holder in found.holders if holder not in message.gone]
            sources.sort(key=lambda holder: holder not in message.leaving)
            if sources[:1] != [message.here]:
                continue
            staying = tuple(holder for holder in found.holders if holder not in away)
            others = tuple(holder for holder in found.holders if holder in away)
            takers = [server for server in message.servers if server not in (*found.holders, *away)]
            ranked = rank_servers(takers, attempt.id.task.stage, found.partition)
            targets = tuple(ranked[: max(0, message.replicas - len(staying))])
            block = Block(attempt.id, found.partition, "", 0, 0, checksum_of(found.index))
            yield Copy(block, staying, others, targets)
