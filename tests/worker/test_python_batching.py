# SPDX-License-Identifier: Apache-2.0
"""Rows on their way to Python workers are cut as Spark cuts them, and results find their rows again."""

from __future__ import annotations

import asyncio
import itertools
import random
from itertools import groupby
from types import SimpleNamespace

import pyarrow as pa
import pytest

from volley.errors import DataError
from volley.plan.types import LONG, STRING, TIMESTAMP, DataType, MapType, SimpleType, to_arrow
from volley.worker.python import batching
from volley.worker.python.batching import Alignment, Gathered, cut, cut_large, results_of
from volley.worker.python.channel import Channel
from volley.worker.python.groups import cut_groups

SCHEMA = pa.schema([("a", pa.int64()), ("r", pa.int64())])


def in_batches(rows: list[int | None], chance: random.Random) -> list[pa.RecordBatch]:
    """The rows in batches of random sizes, some of them empty, with random numbers below the NULLs."""
    found = []
    while rows:
        size = chance.randrange(0, 6)
        stored = pa.array([chance.randrange(9) if row is None else row for row in rows[:size]], pa.int64())
        present = pa.array([row is not None for row in rows[:size]], pa.bool_())
        buffers = [present.buffers()[1], stored.buffers()[1]]
        found.append(pa.record_batch({"a": pa.Array.from_buffers(pa.int64(), len(stored), buffers)}))
        rows = rows[size:]
    return found


def values(batches: list[pa.RecordBatch]) -> list[int | None]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("seed", range(20))
def test_batches_have_as_many_rows_as_spark_gives_them(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[int | None] = list(range(chance.randrange(0, 40)))
    size = chance.randrange(1, 9)
    groups = list(cut(in_batches(rows, chance), size))
    assert [values(group) for group in groups] == [rows[i : i + size] for i in range(0, len(rows), size)]
    assert [values(group) for group in cut(in_batches(rows, chance), 0)] == ([rows] if rows else [])


def test_small_batches_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int | None] = list(range(40))
    small = pa.table({"a": rows}).to_batches(max_chunksize=2)
    assert [len(group) for group in cut_large(small, 2)] == [1, 2, 4, 8, 5]
    assert [value for group in cut_large(small, 2) for value in values(group)] == rows
    large = [pa.record_batch({"a": [None] * 100_000}, schema=SCHEMA.remove(1)) for _ in range(3)]
    assert [len(group) for group in cut_large(large, 100_000)] == [1, 1, 1]
    times = itertools.count()
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert [len(group) for group in cut_large(small, 2)] == [1] * 20, "none waits for slow ones"


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_sent_but_the_last_can_be_cut_into_batches_of_spark(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[int | None] = list(range(chance.randrange(0, 200)))
    size = chance.randrange(1, 9)
    batches = pa.table({"a": rows}).to_batches(max_chunksize=chance.randrange(1, 100)) if rows else []
    groups = [values(group) for group in cut_large(batches, size)]
    assert [value for group in groups for value in group] == rows
    assert not any(len(group) % size for group in groups[:-1])


def test_rows_of_large_batches_are_not_copied() -> None:
    batches = pa.table({"a": range(60)}).to_batches(max_chunksize=20)
    groups = list(cut_large(batches, 6))
    assert [[batch.num_rows for batch in group] for group in groups] == [[18], [2, 4], [12], [4, 2], [18]]
    wide = pa.record_batch({"a": ["x" * 2**20] * 6})
    assert [[batch.num_rows for batch in group] for group in cut_large([wide], 1)] == [[3], [3]]


def test_room_for_rows_is_given_back() -> None:
    """Also by a batch that is larger than the room, and by fewer than are given back at a time."""
    batches = [pa.record_batch({"a": [0] * size}) for size in (10, 1000, *[1] * 500, 10)]

    async def pass_on() -> list[pa.RecordBatch]:
        channel = Channel(asyncio.get_running_loop(), 1000)
        found = asyncio.create_task(asyncio.to_thread(lambda: list(channel.batches())))
        for batch in batches:
            await asyncio.wait_for(channel.put(batch), 30)
        channel.end()
        return await found

    assert asyncio.run(pass_on()) == batches


@pytest.mark.parametrize("seed", range(20))
def test_a_group_is_whole_wherever_batches_end(seed: int) -> None:
    chance = random.Random(seed)
    keys = [chance.choice([None, 1, 2, 3, 4]) for _ in range(chance.randrange(0, 30))]
    rows = sorted(keys, key=lambda key: -1 if key is None else key)
    groups = [values(group) for group in cut_groups(in_batches(rows, chance), [0])]
    assert groups == [list(group) for _, group in groupby(rows)]
    assert [values(group) for group in cut_groups(in_batches(rows, chance), [])] == ([rows] if rows else [])


@pytest.mark.parametrize("seed", range(20))
def test_results_stand_beside_their_rows(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[int | None] = list(range(chance.randrange(1, 40)))
    alignment = Alignment([0], SCHEMA, [LONG])
    alignment.add(batch for batch in in_batches(rows, chance) if batch.num_rows)
    found = []
    for results in in_batches(rows, chance):
        found += [batch.to_pylist() for batch in alignment.match(results)]
    alignment.finish()
    assert [row for part in found for row in part] == [{"a": row, "r": row} for row in rows]


def test_too_few_and_too_many_results_are_errors() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    alignment = Alignment([0], SCHEMA, [LONG])
    alignment.add([batch])
    list(alignment.match(batch.slice(0, 1)))
    with pytest.raises(DataError, match="fewer"):
        alignment.finish()
    with pytest.raises(DataError, match="more"):
        list(alignment.match(batch))


def test_a_result_of_another_type_is_left_to_spark() -> None:
    types = [STRING, TIMESTAMP]
    zone = pa.array([0], pa.timestamp("us", tz="Asia/Tokyo"))
    large = pa.array(["a"], pa.large_string())
    assert [array.type for array in results_of([large, zone], types)] == [to_arrow(kind) for kind in types]
    with pytest.raises(DataError, match="int64"):
        results_of([pa.array([1]), zone], types)
    with pytest.raises(DataError, match="1 columns instead of 2"):
        results_of([zone], types)


@pytest.mark.parametrize(
    ("data_type", "sent"),
    [
        (SimpleType("interval day to second"), pa.array([5, None], pa.duration("us"))),
        (SimpleType("time(6)"), pa.array([7, None], pa.time64("ns"))),
        (
            MapType(STRING, TIMESTAMP, True),
            pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.timestamp("us", tz="Asia/Tokyo"))),
        ),
    ],
    ids=str,
)
def test_values_that_functions_see_in_another_form(data_type: DataType, sent: pa.Array) -> None:
    (found,) = results_of([sent], [data_type])
    assert found.type == to_arrow(data_type)
    assert found.cast(sent.type).equals(sent)
    with pytest.raises(DataError, match="instead of"):
        results_of([pa.array([1, 2], pa.int64())], [data_type])


def test_small_batches_are_passed_on_together() -> None:
    passed: list[pa.RecordBatch] = []
    gathered = Gathered(passed.append)
    for number in range(5000):
        gathered.add(pa.record_batch({"a": [number]}))
    gathered.flush()
    gathered.flush()
    assert values(passed) == list(range(5000))
    assert len(passed) < 100


def test_rows_that_were_sent_together_come_back_together() -> None:
    alignment = Alignment([0], SCHEMA, [LONG])
    parts = [pa.record_batch({"a": [number]}) for number in range(5)]
    alignment.add(parts)
    (found,) = alignment.match(pa.record_batch({"r": [number * 2 for number in range(5)]}))
    assert found.to_pydict() == {"a": [0, 1, 2, 3, 4], "r": [0, 2, 4, 6, 8]}
    without_columns = Alignment([], SCHEMA.remove(0), [LONG])
    without_columns.add([part.select([]) for part in parts])
    rows = sum(batch.num_rows for batch in without_columns.match(pa.record_batch({"r": [1, 2, 3, 4, 5]})))
    assert rows == 5
