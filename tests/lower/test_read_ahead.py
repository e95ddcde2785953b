# SPDX-License-Identifier: Apache-2.0
"""Parts that are read ahead: in order, within limits, and no longer than somebody takes their rows."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial

import pyarrow as pa
import pytest

from helpers.waiting import eventually
from volley.lower.read_ahead import read_ahead

NOTHING = pa.record_batch({"n": pa.array([], pa.int64())})


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def numbers(batches: Generator[pa.RecordBatch, None, None]) -> list[int]:
    return [number for found in batches for number in found.column(0).to_pylist()]


def test_parts_are_in_order() -> None:
    first_may_go = threading.Event()

    def read(part: int) -> Generator[pa.RecordBatch, None, None]:
        if part == 0:
            # The others are read meanwhile.
            assert first_may_go.wait(120)
        if part == 3:
            first_may_go.set()
        yield batch(10 * part)
        yield batch(10 * part + 1, 10 * part + 2)

    works = [partial(read, part) for part in range(9)]
    expected = [10 * part + row for part in range(9) for row in range(3)]
    assert numbers(read_ahead(works, 4, 2**20, NOTHING)) == expected
    assert numbers(read_ahead([], 4, 2**20, NOTHING)) == []


def test_errors_come_in_their_turn() -> None:
    def read(part: int) -> Generator[pa.RecordBatch, None, None]:
        yield batch(part)
        if part == 1:
            raise OSError("lost")

    found = read_ahead([partial(read, part) for part in range(4)], 4, 2**20, NOTHING)
    taken: list[int] = []

    def take_all() -> None:
        for rows in found:
            taken.extend(rows.column(0).to_pylist())

    with pytest.raises(OSError, match="lost"):
        take_all()
    assert taken == [0, 1]


def test_reads_no_further_than_its_limits() -> None:
    read_so_far = [0, 0, 0]

    def read(part: int) -> Generator[pa.RecordBatch, None, None]:
        for number in range(100):
            read_so_far[part] += 1
            yield batch(number)

    found = read_ahead([partial(read, part) for part in range(3)], 2, 40, NOTHING)
    while not next(found).num_rows:
        pass
    eventually(lambda: read_so_far[1] == 6)
    # One was taken; five are 40 bytes; one more waits for its place. The third part waits for the first to end.
    assert read_so_far[0] <= 7
    assert read_so_far[2] == 0
    found.close()


def test_ends_with_its_reader() -> None:
    closed = [threading.Event(), threading.Event()]

    def read(part: int) -> Generator[pa.RecordBatch, None, None]:
        try:
            while True:
                yield batch(part)
        finally:
            closed[part].set()

    found = read_ahead([partial(read, part) for part in range(2)], 2, 8, NOTHING)
    while not next(found).num_rows:
        pass
    found.close()
    assert all(event.wait(120) for event in closed)


def test_waits_do_not_block() -> None:
    """Without rows there are empty batches, for which the engine's thread wakes up."""
    may_go = threading.Event()

    def read() -> Generator[pa.RecordBatch, None, None]:
        assert may_go.wait(120)
        yield batch(1)

    found = read_ahead([read], 1, 8, NOTHING)
    assert next(found) is NOTHING
    may_go.set()
    assert numbers(found) == [1]
