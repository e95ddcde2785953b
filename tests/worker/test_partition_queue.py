# SPDX-License-Identifier: Apache-2.0
"""The queue that gives the rows of partitions in the order of these, whichever thread is first."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from helpers.waiting import eventually
from volley.worker.batch_queue import NOTHING, PartitionQueue
from volley.worker.split_queue import Stopped

_LONG_SECONDS = 60.0


def batch(value: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([value] * 10, pa.int64())})


def values(queue: PartitionQueue) -> list[int]:
    found = []
    while (rows := queue.get(_LONG_SECONDS)) is not None:
        found.append(rows.column(0)[0].as_py())
    return found


def test_partitions_come_one_after_the_other() -> None:
    queue = PartitionQueue(1000, partitions=3, width=3)
    for number in (2, 0, 1):
        queue.of(number).put(batch(number))
        queue.of(number).end_reader()
    assert values(queue) == [0, 1, 2]


def test_the_first_partition_is_awaited() -> None:
    queue = PartitionQueue(1000, partitions=2, width=2)
    queue.of(1).put(batch(1))
    assert queue.get(0.001) is NOTHING


def test_no_thread_fills_partitions_far_ahead() -> None:
    queue = PartitionQueue(1000, partitions=9, width=2)
    numbers = iter(range(9))
    lock = threading.Lock()
    begun: list[int] = []

    def fill() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            target = queue.of(number)
            begun.append(number)
            for _ in range(20):
                target.put(batch(number))
            target.end_reader()

    threads = [threading.Thread(target=fill, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(begun) == 2)
    assert sorted(begun) == [0, 1]
    assert values(queue) == [number for number in range(9) for _ in range(20)]
    for thread in threads:
        thread.join()


def test_an_error_ends_it() -> None:
    queue = PartitionQueue(1000, partitions=3, width=1)
    queue.fail(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        queue.get(_LONG_SECONDS)


def test_close_wakes_who_waits() -> None:
    queue = PartitionQueue(1000, partitions=3, width=1)
    stopped: list[bool] = []

    def fill() -> None:
        try:
            queue.of(2).put(batch(2))
        except Stopped:
            stopped.append(True)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    queue.close()
    thread.join()
    assert stopped
    assert queue.get(_LONG_SECONDS) is None
