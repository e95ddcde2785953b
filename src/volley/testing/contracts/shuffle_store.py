# SPDX-License-Identifier: Apache-2.0
"""The contract of `ShuffleStore`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from volley.batches import rows_without_columns
from volley.errors import BlockMissing
from volley.ids import AttemptId, QueryId
from volley.shuffle.base import Block, ShuffleStore
from volley.testing.contracts.attempts import attempt_id, batch_of


class ShuffleStoreContract:
    """The contract of `ShuffleStore`. Subclasses provide the fixture `store`, an empty store."""

    def test_blocks_hold_what_was_written_in_order(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 3)
        sink.write(0, batch_of(1, 2))
        sink.write(2, batch_of(3))
        sink.write(0, batch_of(4))
        blocks = sink.commit()
        assert [block.partition for block in blocks] == [0, 1, 2]
        assert [block.rows for block in blocks] == [3, 0, 1]
        assert [read_values(store, block) for block in blocks] == [[1, 2, 4], [], [3]]

    def test_rows_without_columns_keep_their_number(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 2)
        sink.write(0, rows_without_columns(3))
        sink.write(0, rows_without_columns(200_000))
        (block, nothing) = sink.commit()
        assert (block.rows, nothing.rows) == (200_003, 0)
        assert sum(batch.num_rows for batch in store.read(block)) == 200_003
        assert sum(batch.num_rows for batch in store.read_many([block, block])) == 400_006

    def test_a_block_can_be_read_again(self, store: ShuffleStore) -> None:
        (block,) = write_block(store, attempt_id(), 7)
        assert read_values(store, block) == read_values(store, block) == [7]

    def test_nothing_is_readable_before_the_commit(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 1)
        sink.write(0, batch_of(1))
        with pytest.raises(BlockMissing):
            read_values(store, Block(attempt_id(), 0, "here", 1, 8))

    def test_attempts_do_not_see_each_other(self, store: ShuffleStore) -> None:
        (first,) = write_block(store, attempt_id(attempt=0), 1)
        (second,) = write_block(store, attempt_id(attempt=1), 2)
        assert (read_values(store, first), read_values(store, second)) == ([1], [2])

    def test_an_attempt_writes_once(self, store: ShuffleStore) -> None:
        write_block(store, attempt_id(), 1)
        with pytest.raises(ValueError):
            store.sink(attempt_id(), 1)

    def test_an_aborted_attempt_leaves_nothing(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 1)
        sink.write(0, batch_of(1))
        sink.abort()
        assert store.held_bytes == 0
        with pytest.raises(BlockMissing):
            read_values(store, Block(attempt_id(), 0, "here", 1, 8))

    def test_abort_after_commit_takes_nothing_back(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 1)
        sink.write(0, batch_of(1))
        (block,) = sink.commit()
        sink.abort()
        assert read_values(store, block) == [1]

    def test_nothing_is_written_after_the_commit(self, store: ShuffleStore) -> None:
        sink = store.sink(attempt_id(), 1)
        (block,) = sink.commit()
        with pytest.raises(BlockMissing):
            sink.write(0, batch_of(1))
        assert read_values(store, block) == []

    def test_release_frees_one_query_and_no_other(self, store: ShuffleStore) -> None:
        (gone,) = write_block(store, attempt_id(query="a"), 1)
        (kept,) = write_block(store, attempt_id(query="b"), 2)
        store.release(QueryId("a"))
        with pytest.raises(BlockMissing):
            read_values(store, gone)
        assert read_values(store, kept) == [2]
        store.release(QueryId("b"))
        assert store.held_bytes == 0

    def test_late_writers_of_a_released_query_are_refused(self, store: ShuffleStore) -> None:
        open_sink = store.sink(attempt_id(), 1)
        store.release(QueryId("q"))
        with pytest.raises(BlockMissing):
            open_sink.write(0, batch_of(1))
        with pytest.raises(BlockMissing):
            open_sink.commit()
        with pytest.raises(BlockMissing):
            store.sink(attempt_id(attempt=1), 1)
        assert store.held_bytes == 0

    def test_a_block_that_is_not_what_its_name_says_is_missing(self, store: ShuffleStore) -> None:
        (block,) = write_block(store, attempt_id(), 1)
        more = replace(block, rows=block.rows + 1)
        with pytest.raises(BlockMissing):
            read_values(store, more)

    def test_bytes_are_counted(self, store: ShuffleStore) -> None:
        (block,) = write_block(store, attempt_id(), *range(1000))
        # The size of the rows in memory; the store may compress them.
        assert block.size_bytes >= 8000
        assert store.held_bytes > 0

    def test_many_blocks_come_one_after_the_other(self, store: ShuffleStore) -> None:
        written = [write_block(store, attempt_id(task), task, -task) for task in range(5)]
        blocks = [block for (block,) in reversed(written)]
        read = [value for batch in store.read_many(blocks) for value in batch.column(0).to_pylist()]
        assert read == [4, -4, 3, -3, 2, -2, 1, -1, 0, 0]

    def test_one_missing_of_many_is_an_error(self, store: ShuffleStore) -> None:
        (kept,) = write_block(store, attempt_id(query="a"), 1)
        (gone,) = write_block(store, attempt_id(query="b"), 2)
        store.release(QueryId("b"))
        with pytest.raises(BlockMissing):
            list(store.read_many([kept, gone, kept]))


def write_block(store: ShuffleStore, attempt: AttemptId, *values: int) -> tuple[Block, ...]:
    """Commit an attempt with one partition of these values."""
    sink = store.sink(attempt, 1)
    sink.write(0, batch_of(*values))
    return sink.commit()


def read_values(store: ShuffleStore, block: Block) -> list[int]:
    return [value for batch in store.read(block) for value in batch.column(0).to_pylist()]
