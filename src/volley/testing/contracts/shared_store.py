# SPDX-License-Identifier: Apache-2.0
"""The contract of `SharedStore`: a store outside the workers, with a driver that decides how long data lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from volley.errors import BlockMissing, ShuffleRefused
from volley.ids import QueryId
from volley.shuffle.base import SharedStore
from volley.testing.contracts.attempts import attempt_id, batch_of
from volley.testing.contracts.shuffle_store import read_values, write_block

QUERY = QueryId("q")
OTHER = QueryId("other")


class SharedStoreContract:
    """What `SharedStore` promises beyond `ShuffleStore`.

    Subclasses provide `make_store`. Each call returns another object for the same data, as another process would have,
    and no query has begun.
    """

    def test_a_query_that_has_not_begun_is_refused(self, make_store: Callable[[], SharedStore]) -> None:
        with pytest.raises((BlockMissing, ShuffleRefused)):
            write_block(make_store(), attempt_id(), 1)

    def test_a_query_may_begin_again(self, make_store: Callable[[], SharedStore]) -> None:
        driver = make_store()
        driver.begin(QUERY)
        (block,) = write_block(driver, attempt_id(), 1)
        driver.begin(QUERY)
        assert read_values(driver, block) == [1]

    def test_everybody_reads_what_a_worker_committed(self, make_store: Callable[[], SharedStore]) -> None:
        driver, writer, reader = make_store(), make_store(), make_store()
        driver.begin(QUERY)
        (block,) = write_block(writer, attempt_id(), 1, 2)
        assert block.outlives_worker
        assert read_values(reader, block) == read_values(driver, block) == [1, 2]

    def test_data_outlives_its_writer(self, make_store: Callable[[], SharedStore]) -> None:
        driver, worker = make_store(), make_store()
        driver.begin(QUERY)
        (block,) = write_block(worker, attempt_id(), 1)
        worker.leave(QUERY)
        assert read_values(driver, block) == [1]
        worker.close()
        assert read_values(driver, block) == [1]

    def test_who_has_left_writes_no_more_and_others_do(self, make_store: Callable[[], SharedStore]) -> None:
        driver, worker, another = make_store(), make_store(), make_store()
        driver.begin(QUERY)
        open_sink = worker.sink(attempt_id(), 1)
        worker.leave(QUERY)
        with pytest.raises(BlockMissing):
            open_sink.write(0, batch_of(1))
        with pytest.raises(BlockMissing):
            worker.sink(attempt_id(1), 1)
        (block,) = write_block(another, attempt_id(2), 2)
        assert read_values(driver, block) == [2]

    def test_a_release_of_the_driver_is_one_for_all(self, make_store: Callable[[], SharedStore]) -> None:
        driver, worker = make_store(), make_store()
        driver.begin(QUERY)
        driver.begin(OTHER)
        (gone,) = write_block(worker, attempt_id(), 1)
        (kept,) = write_block(worker, attempt_id(query=OTHER.value), 2)
        open_sink = worker.sink(attempt_id(1), 1)
        open_sink.write(0, batch_of(1))
        driver.release(QUERY)
        for store in (driver, worker, make_store()):
            with pytest.raises(BlockMissing):
                read_values(store, gone)
        # A worker that was not told learns it at the latest when it commits.
        with pytest.raises(BlockMissing):
            open_sink.commit()
        with pytest.raises(BlockMissing):
            write_block(worker, attempt_id(3), 1)
        assert read_values(worker, kept) == [2]

    def test_closing_a_driver_releases_what_it_began_and_nothing_else(
        self, make_store: Callable[[], SharedStore]
    ) -> None:
        driver, another = make_store(), make_store()
        driver.begin(QUERY)
        another.begin(OTHER)
        (gone,) = write_block(driver, attempt_id(), 1)
        (kept,) = write_block(another, attempt_id(query=OTHER.value), 2)
        driver.close()
        with pytest.raises(BlockMissing):
            read_values(another, gone)
        assert read_values(another, kept) == [2]

    def test_attempts_of_different_workers_do_not_see_each_other(
        self, make_store: Callable[[], SharedStore]
    ) -> None:
        driver, first, second = make_store(), make_store(), make_store()
        driver.begin(QUERY)
        aborted = first.sink(attempt_id(attempt=0), 1)
        aborted.write(0, batch_of(1))
        (block,) = write_block(second, attempt_id(attempt=1), 2)
        aborted.abort()
        assert read_values(driver, block) == [2]
