# SPDX-License-Identifier: Apache-2.0
"""How much exchanged data takes, where it lies, and that it comes back as it was."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from volley.ids import QueryId
from volley.shuffle.base import Block, BlockRequest
from volley.shuffle.chunk_builder import CHUNK_BYTES, CHUNK_ROWS
from volley.shuffle.frames import Header, Kind
from volley.shuffle.location import Location
from volley.shuffle.worker_store import WorkerStore
from volley.testing.contracts import attempt_id
from volley.testing.holders import new_store, serve_store

MEGABYTE = 2**20


def store_in(directory: Path, **options: object) -> WorkerStore:
    return new_store(Location.here("nowhere"), [directory], **options)


def megabytes(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.arange(0, count * MEGABYTE // 8)})


def written(store: WorkerStore, *batches: pa.RecordBatch, task: int = 0) -> Block:
    sink = store.sink(attempt_id(task), 1)
    for batch in batches:
        sink.write(0, batch)
    (block,) = sink.commit()
    return block


class TestBudget:
    def test_what_fits_stays_in_memory(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=20 * MEGABYTE)
        block = written(store, megabytes(10))
        usage = store.usage(QueryId("q"))
        assert usage.spilled_bytes == block.spilled_bytes == 0
        assert 10 * MEGABYTE <= usage.memory_bytes < 10.1 * MEGABYTE
        assert store.memory_bytes == usage.memory_bytes

    def test_past_the_threshold_a_new_output_goes_to_disk(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=20 * MEGABYTE, spill_threshold=0.5, compression="none")
        written(store, megabytes(10))
        assert store.usage(QueryId("q")).spilled_bytes == 0
        block = written(store, megabytes(1), task=1)
        assert store.usage(QueryId("q")).spilled_bytes >= MEGABYTE
        assert next(store.read(block)).equals(megabytes(1))

    def test_past_the_limit_an_output_goes_on_on_disk(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=20 * MEGABYTE, compression="none")
        rows = megabytes(4)
        block = written(store, *[rows] * 10)
        usage = store.usage(QueryId("q"))
        assert 12 * MEGABYTE <= usage.memory_bytes <= 20 * MEGABYTE
        assert 40 * MEGABYTE <= usage.memory_bytes + usage.spilled_bytes < 41 * MEGABYTE
        # The file has the block's index too.
        assert 0 < block.spilled_bytes <= usage.spilled_bytes < block.spilled_bytes + 10_000
        read = pa.Table.from_batches(store.read(block))
        assert read.equals(pa.Table.from_batches([rows] * 10))

    def test_the_limit_holds_while_an_output_is_written(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=8 * MEGABYTE)
        sink = store.sink(attempt_id(), 64)
        small = megabytes(1).slice(0, 1000)
        most = 0
        for number in range(20_000):
            sink.write(number % 64, small)
            most = max(most, store.memory_bytes)
        # Beside the limit, a little that waits to become large enough to be written.
        assert most <= 9 * MEGABYTE + small.nbytes
        assert sum(block.rows for block in sink.commit()) == 20_000_000

    def test_many_outputs_at_once_share_the_limit(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=64 * MEGABYTE)
        sinks = [store.sink(attempt_id(task), 64) for task in range(8)]
        small = megabytes(1).slice(0, 8192)
        most = 0
        for number in range(300):
            for sink in sinks:
                sink.write(number % 64, small)
            most = max(most, store.memory_bytes)
        assert most <= (64 + len(sinks)) * MEGABYTE + small.nbytes
        assert sum(block.rows for sink in sinks for block in sink.commit()) == 300 * 8 * 8192

    def test_room_comes_back(self, tmp_path: Path) -> None:
        store = store_in(tmp_path, memory_limit_bytes=20 * MEGABYTE)
        for query in ("a", "b", "c"):
            sink = store.sink(attempt_id(query=query), 1)
            sink.write(0, megabytes(12))
            sink.commit()
            assert store.usage(QueryId(query)).spilled_bytes == 0
            store.release(QueryId(query))
        assert store.memory_bytes == 0

    @pytest.mark.parametrize(
        ("compression", "smaller"), [("none", False), ("lz4", True), ("zstd", True), ("auto", True)]
    )
    def test_disk_is_packed(self, tmp_path: Path, compression: str, smaller: bool) -> None:
        store = store_in(tmp_path, memory_limit_bytes=0, compression=compression)
        written(store, megabytes(4))
        assert (store.usage(QueryId("q")).spilled_bytes < 3 * MEGABYTE) is smaller


class TestBatches:
    def test_small_batches_are_put_together(self, tmp_path: Path) -> None:
        store = store_in(tmp_path)
        rows = pa.record_batch({"n": pa.arange(0, 4 * CHUNK_ROWS)})
        block = written(store, *[rows.slice(start, 1024) for start in range(0, rows.num_rows, 1024)])
        read = list(store.read(block))
        assert [batch.num_rows for batch in read] == [CHUNK_ROWS] * 4
        assert pa.Table.from_batches(read).equals(pa.Table.from_batches([rows]))

    def test_large_batches_are_taken_apart(self, tmp_path: Path) -> None:
        store = store_in(tmp_path)
        block = written(store, megabytes(20))
        read = list(store.read(block))
        assert max(batch.nbytes for batch in read) <= CHUNK_BYTES
        assert pa.Table.from_batches(read).equals(pa.Table.from_batches([megabytes(20)]))

    @pytest.mark.parametrize(
        "type_", [pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()], ids=str
    )
    def test_strings_do_not_drag_other_rows_along(self, tmp_path: Path, type_: pa.DataType) -> None:
        texts = pa.array([f"a text that does not fit a view {number:06}" for number in range(100_000)])
        few = pa.record_batch({"t": texts.cast(type_)}).slice(50_000, 1000)
        assert few.get_total_buffer_size() > 4_000_000
        store = store_in(tmp_path)
        block = written(store, few)
        assert block.size_bytes < 100_000
        assert store.held_bytes < 100_000
        assert next(store.read(block)).equals(few)

    def test_views_that_are_taken_apart_do_not_drag_each_other_along(self, tmp_path: Path) -> None:
        texts = pa.array([f"a text that does not fit a view {number:06}" for number in range(400_000)])
        rows = pa.record_batch({"t": texts.cast(pa.string_view())})
        store = store_in(tmp_path)
        read = pa.Table.from_batches(store.read(written(store, rows)))
        assert read.equals(pa.Table.from_batches([rows]))
        assert store.held_bytes < 1.2 * rows.nbytes

    def test_waiting_rows_do_not_drag_other_rows_along(self, tmp_path: Path) -> None:
        store = store_in(tmp_path)
        sink = store.sink(attempt_id(), 1)
        before = pa.total_allocated_bytes()
        for _ in range(20):
            sink.write(0, megabytes(8).slice(0, 10))
        assert pa.total_allocated_bytes() - before < MEGABYTE

    @pytest.mark.parametrize("memory_limit_bytes", [2**30, 0], ids=["memory", "disk"])
    @pytest.mark.parametrize("way", ["own", "mapped", "flight"])
    def test_every_type_comes_back_as_it_was(self, tmp_path: Path, memory_limit_bytes: int, way: str) -> None:
        rows = every_type()
        with serve_store([tmp_path], memory_limit_bytes=memory_limit_bytes, compression="lz4") as store:
            block = written(store, rows.slice(0, 1), rows.slice(1))
            side = (
                store
                if way == "own"
                else store_in(tmp_path, map_same_host=way == "mapped", compression="lz4")
            )
            (read,) = side.read(block)
            read.validate(full=True)
            assert read.schema.equals(rows.schema, check_metadata=True)
            assert read.equals(rows)

    def test_decimals_lie_where_the_engine_can_use_them(self, tmp_path: Path) -> None:
        # A column in front whose bytes are a multiple of 8 and not of 16 must not push them aside.
        numbers = pa.array([Decimal(number) for number in range(1000)], pa.decimal128(20, 2))
        rows = pa.record_batch({"byte": pa.array([1] * 1000, pa.int8()), "a": numbers, "b": numbers})
        (read,) = (store := store_in(tmp_path)).read(written(store, rows))
        assert read.equals(rows)
        assert [read.column(name).buffers()[1].address % 16 for name in ("a", "b")] == [0, 0]


def every_type() -> pa.RecordBatch:
    when = datetime.datetime(2024, 2, 29, 12, 30)
    columns = {
        "boolean": pa.array([True, None, False]),
        "byte": pa.array([1, None, -128], pa.int8()),
        "long": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
        "double": pa.array([0.1, None, float("inf")]),
        "decimal": pa.array([Decimal("1.20"), None, Decimal("-9.99")], pa.decimal128(3, 2)),
        "string": pa.array(["", None, "ä𝄞"]),
        "binary": pa.array([b"", None, b"\x00\xff"]),
        "date": pa.array([when.date(), None, datetime.date(1, 1, 1)]),
        "timestamp": pa.array([when, None, when], pa.timestamp("us", "UTC")),
        "array": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        "nested": pa.array(
            [[{"d": Decimal("0.5")}], None, [None]], pa.list_(pa.struct([("d", pa.decimal128(38, 1))]))
        ),
        "nothing": pa.nulls(3),
    }
    schema = pa.schema(
        [pa.field(name, column.type, metadata={"from": name}) for name, column in columns.items()],
        metadata={"made": "here"},
    )
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


class TestMessages:
    def test_none_is_larger_than_allowed(self, tmp_path: Path) -> None:
        rows = pa.record_batch({"t": pa.array(["x" * 300_000, "y" * 1000])})
        with serve_store([tmp_path], max_message_bytes=65_536) as store:
            block = written(store, rows)
            sent = list(store.frames(BlockRequest((block,))))
            assert max(batch.nbytes for batch, _ in sent) <= 65_536 + 16
            assert len(sent) > 5
            side = store_in(tmp_path, map_same_host=False)
            assert pa.Table.from_batches(side.read(block)).equals(pa.Table.from_batches([rows]))

    @pytest.mark.parametrize(
        ("compression", "same_host", "other_host"),
        [("auto", "none", "lz4"), ("none", "none", "none"), ("lz4", "lz4", "lz4"), ("zstd", "zstd", "zstd")],
    )
    def test_what_is_packed_on_its_way(
        self, tmp_path: Path, compression: str, same_host: str, other_host: str
    ) -> None:
        here = Location.here("nowhere")
        there = Location("elsewhere", "0", 0, 1, 1)
        store = store_in(tmp_path, compression=compression)
        assert (store.codec_from(here), store.codec_from(there)) == (same_host, other_host)

    @pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
    def test_memory_is_packed_as_asked_and_disk_is_packed_once(self, tmp_path: Path, codec: str) -> None:
        for memory_limit_bytes, expected in ((2**30, codec), (0, "none")):
            store = store_in(tmp_path, memory_limit_bytes=memory_limit_bytes)
            block = written(store, megabytes(2))
            headers = [
                Header.unpack(header) for _, header in store.frames(BlockRequest((block,), codec=codec))
            ]
            assert [header.kind for header in headers] == [Kind.INDEX, Kind.PART]
            assert headers[1].codec == expected
            store.close()
