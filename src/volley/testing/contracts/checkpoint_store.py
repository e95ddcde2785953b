# SPDX-License-Identifier: Apache-2.0
"""The contract of `CheckpointStore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.rpc.shuffle_messages import FindStage, KeepStage
from volley.shuffle.base import Block, CheckpointStore, SharedStore
from volley.testing.contracts.attempts import attempt_id
from volley.testing.contracts.shuffle_store import read_values, write_block

_SECRET, _KEY = "5e" * 32, "ab" * 32


class CheckpointStoreContract:
    """Subclasses provide the fixture `make_store`, which opens the same store as another process would."""

    def test_a_kept_stage_outlives_its_query(self, make_store: Callable[[], SharedStore]) -> None:
        first = make_store()
        block, kept = _keep(first, "a")
        assert read_values(first, block) == read_values(first, kept) == [1, 2]
        first.release(QueryId("a"))
        with pytest.raises(BlockMissing):
            read_values(first, block)
        # In the process that ended the query, too.
        assert read_values(first, kept) == [1, 2]
        first.close()
        second = make_store()
        assert _found(second) == b"record of a"
        assert read_values(second, kept) == [1, 2]

    def test_other_stages_of_the_query_go(self, make_store: Callable[[], SharedStore]) -> None:
        store = make_store()
        _, kept = _keep(store, "a")
        held_bytes = make_store().held_bytes
        task = attempt_id(query="a").task
        other = AttemptId(replace(task, stage=replace(task.stage, stage=7)), 0)
        write_block(store, other, *range(1000))
        store.release(QueryId("a"))
        assert make_store().held_bytes <= held_bytes
        assert read_values(store, kept) == [1, 2]

    def test_only_the_secret_and_the_key_find_it(self, make_store: Callable[[], SharedStore]) -> None:
        store = make_store()
        _keep(store, "a")
        assert _found(store, secret="00" * 32) is None
        assert _found(store, key="00" * 32) is None
        assert _found(store) == b"record of a"

    def test_the_newest_is_found(self, make_store: Callable[[], SharedStore]) -> None:
        store = make_store()
        for query in ("b", "a", "c"):
            _keep(store, query)
            assert _found(store) == _found(make_store()) == f"record of {query}".encode()

    def test_the_list_gives_no_access(self, make_store: Callable[[], SharedStore]) -> None:
        store = make_store()
        _keep(store, "a")
        assert isinstance(store, CheckpointStore)
        (info,) = store.checkpoints()
        assert info.id not in _SECRET
        assert (info.stages, info.size_bytes > 0) == (1, True)
        assert 0 < info.seconds_left <= 1000

    def test_a_dropped_checkpoint_is_gone(self, make_store: Callable[[], SharedStore]) -> None:
        store = make_store()
        _, kept = _keep(store, "a")
        store.release(QueryId("a"))
        assert isinstance(store, CheckpointStore)
        assert not store.drop_checkpoint("00" * 32)
        assert _found(store) is not None
        assert store.drop_checkpoint(_SECRET)
        assert _found(store) is None
        assert store.checkpoints() == ()
        with pytest.raises(BlockMissing):
            read_values(make_store(), kept)
        assert make_store().held_bytes == 0


def _keep(store: SharedStore, query: str) -> tuple[Block, Block]:
    """A block of a query, and the same as it is kept."""
    assert isinstance(store, CheckpointStore)
    store.begin(QueryId(query))
    (block,) = write_block(store, attempt_id(query=query), 1, 2)
    kept = QueryId(f"{query}-s0", "cd" * 16)
    record = f"record of {query}".encode()
    store.keep_stage(KeepStage(_SECRET, _KEY, kept, (block.attempt,), record, 1000.0), {block.location})
    task = block.attempt.task
    attempt = replace(block.attempt, task=replace(task, stage=replace(task.stage, query=kept)))
    return block, replace(block, attempt=attempt)


def _found(store: SharedStore, secret: str = _SECRET, key: str = _KEY) -> bytes | None:
    assert isinstance(store, CheckpointStore)
    return store.find_stage(FindStage(secret, key, 1000.0))
