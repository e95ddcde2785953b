# SPDX-License-Identifier: Apache-2.0
"""A feed: bounded, each split once, the same to every attempt at a task, and over when its source is."""

from __future__ import annotations

import asyncio
import heapq
import random
import resource
import threading
import tracemalloc
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volley.errors import SourceError
from volley.plan.nodes import DataFile, FileScan
from volley.splits.feed import Feed
from volley.splits.files import FileSource, Piece, decode, encode
from volley.splits.ledger import Ledger
from volley.splits.source import Estimate, Split, SplitSource
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.scans import scan_tasks
from volley.testing.contracts import SplitSourceContract
from volley.worker.split_queue import credits_for

MIN_SPLIT_BYTES = LIMITS.min_split_bytes


def scan_of(*sizes: int) -> FileScan:
    files = tuple(DataFile(f"/data/{number}.parquet", size, number) for number, size in enumerate(sizes))
    return FileScan("parquet", files, (), (), ())


class Source:
    """Gives what it is told to; remembers that it was closed, and how far it was asked."""

    schema = pa.schema([])

    def __init__(self, splits: Callable[[], Iterator[Any] | AsyncIterator[Any]]) -> None:
        self._make = splits
        self.closed = threading.Event()
        self.asked = 0

    def splits(self) -> Any:
        found = self._make()
        if isinstance(found, AsyncIterator):
            return found
        return self._counted(found)

    def _counted(self, splits: Iterator[Any]) -> Iterator[Any]:
        for split in splits:
            self.asked += 1
            yield split

    def estimate(self) -> Estimate:
        return Estimate(self.asked, 0, final=False)

    def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()


def splits(count: int, size: Callable[[int], int | None] = lambda number: None) -> Iterator[Split]:
    return (Split(str(number).encode(), size(number)) for number in range(count))


def told(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(story, 120))


async def everything(feed: Feed, task: int, credits: int = 7) -> list[bytes]:
    found: list[bytes] = []
    after = 0
    while True:
        share = await feed.take(task, after, credits)
        found += share.splits
        after = share.after
        if share.over:
            return found


class TestFileSource(SplitSourceContract):
    @pytest.fixture
    def make_source(self) -> Callable[[], SplitSource]:
        return lambda: FileSource(scan_of(5, 5, 9, 3 * MIN_SPLIT_BYTES), 2, LIMITS)


class TestFiles:
    @given(
        path=st.text(),
        partition=st.tuples(
            st.none() | st.integers() | st.text() | st.binary() | st.booleans() | st.decimals(allow_nan=False)
        ),
    )
    def test_a_file_comes_back_from_its_split(
        self, path: str, partition: tuple[int | str | bytes | Decimal | None]
    ) -> None:
        files = (DataFile(path, 12, 34, partition), DataFile(path, 1, 2, partition))
        for piece in (Piece(files), Piece(files[:1], 3, 7)):
            assert decode(encode(piece)) == piece

    @given(
        sizes=st.lists(st.integers(0, 50 * MIN_SPLIT_BYTES), min_size=1, max_size=60), tasks=st.integers(1, 9)
    )
    def test_every_part_of_every_file_is_in_one_split(self, sizes: list[int], tasks: int) -> None:
        scan = scan_of(*sizes)
        found: dict[str, list[tuple[int, int]]] = {}
        for split in FileSource(scan, tasks, LIMITS).splits():
            piece = decode(split.payload)
            for file in piece.files:
                found.setdefault(file.path, []).append((piece.part, piece.parts))
        assert set(found) == {file.path for file in scan.files}
        for parts in found.values():
            assert sorted(parts) == [(part, len(parts)) for part in range(len(parts))]

    def test_a_huge_file_is_for_all_workers_and_many_small_ones_go_together(self) -> None:
        huge = scan_of(100 * MIN_SPLIT_BYTES)
        assert scan_tasks(huge, 4, LIMITS) == 4
        assert len(list(FileSource(huge, 4, LIMITS).splits())) >= 16
        small = scan_of(*[1000] * 10_000)
        assert scan_tasks(small, 4, LIMITS) == 4
        assert 24 <= len(list(FileSource(small, 4, LIMITS).splits())) < 1000
        assert scan_tasks(scan_of(10), 4, LIMITS) == 1


class TestLedger:
    def test_it_reads_again_from_any_place_that_it_gave(self) -> None:
        ledger = Ledger()
        payloads = [bytes([number]) * number for number in range(100)]
        ledger.append(payloads[:50], 0)
        first, place = ledger.read(0, 10, 10**6)
        ledger.append(payloads[50:], 0)
        rest, end = ledger.read(place, 1000, 10**6)
        assert [*first, *rest] == payloads
        assert ledger.is_end(end)
        assert ledger.read(place, 1000, 10**6) == (rest, end)
        ledger.close()

    def test_an_answer_is_bounded_in_bytes_and_never_empty(self) -> None:
        ledger = Ledger()
        ledger.append([b"x" * 100, b"y" * 100, b"z"], 0)
        found, place = ledger.read(0, 10, 1)
        assert found == (b"x" * 100,)
        assert ledger.read(place, 10, 101)[0] == (b"y" * 100, b"z")
        ledger.close()


class TestFeed:
    def test_every_split_goes_to_one_task(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: splits(1000)))
            feed.start()
            found = await asyncio.gather(*(everything(feed, task) for task in range(4)))
            assert sorted(split for mine in found for split in mine) == sorted(
                split.payload for split in splits(1000)
            )
            status = feed.status()
            assert (status.found, status.queued, sum(status.by_task), status.final) == (1000, 0, 1000, True)

        told(story())

    def test_every_attempt_at_a_task_reads_the_same_and_then_goes_on(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: splits(20)))
            feed.start()
            await feed.wait_discovered()
            first = await feed.take(0, 0, 5)
            other = await feed.take(1, 0, 5)
            # The attempt at task 0 fails here. The next one begins with what the first had, and takes more.
            again = await everything(feed, 0)
            assert again[: len(first.splits)] == list(first.splits)
            assert not set(again) & set(other.splits)
            assert sorted([*again, *await everything(feed, 1)]) == sorted(u.payload for u in splits(20))
            assert await everything(feed, 0) == again

        told(story())

    def test_two_attempts_at_once_read_the_same(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: splits(500)), window_splits=16)
            feed.start()
            # Spark may run a task twice and take whichever ends first; another task takes what it can meanwhile.
            one, two, other = await asyncio.gather(
                everything(feed, 0, credits=3), everything(feed, 0, credits=7), everything(feed, 1)
            )
            assert one == two
            assert sorted([*one, *other]) == sorted(split.payload for split in splits(500))

        told(story())

    def test_a_committed_task_gets_no_more(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: splits(20)))
            feed.start()
            await feed.wait_discovered()
            first = await feed.take(0, 0, 5)
            feed.commit(0)
            assert await everything(feed, 0) == list(first.splits)
            assert feed.status().done == len(first.splits)
            # Also one that read nothing, because its plan did not ask for it.
            feed.commit(1)
            assert await everything(feed, 1) == []

        told(story())

    def test_the_largest_go_first(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: splits(100, lambda number: number % 10)))
            feed.start()
            await feed.wait_discovered()
            found = [int(split) % 10 for split in await everything(feed, 0, credits=1)]
            assert found == sorted(found, reverse=True)

        told(story())

    def test_splits_go_to_workers_on_their_hosts(self) -> None:
        async def story() -> None:
            hosts = [Split(b"a", 9, hosts=("x",)), Split(b"b", 5, hosts=("y",)), Split(b"c", 1, hosts=("x",))]
            feed = Feed("f", Source(lambda: iter(hosts)))
            feed.start()
            await feed.wait_discovered()
            assert (await feed.take(0, 0, 1, "y")).splits == (b"b",)
            assert (await feed.take(1, 0, 1, "z")).splits == (b"a",)
            assert (await feed.take(2, 0, 1, "y")).splits == (b"c",)

        told(story())

    @pytest.mark.parametrize("limits", [{"window_splits": 10}, {"window_bytes": 10}])
    def test_discovery_waits_for_tasks(self, limits: dict[str, int]) -> None:
        async def story() -> None:
            source = Source(lambda: (Split(b"1") for _ in iter(int, 1)))
            feed = Feed("f", source, **limits)
            feed.start()
            share = await feed.take(0, 0, 1)
            while source.asked < 12:
                share = await feed.take(0, share.after, 1)
            # One is in the hand of discovery, which waits for room.
            assert feed.status().queued <= 10
            await feed.stop()
            assert source.closed.is_set()

        told(story())

    def test_an_error_comes_with_its_cause_to_everybody(self) -> None:
        async def story() -> None:
            def broken() -> Iterator[Split]:
                yield Split(b"1")
                raise OSError("the listing broke off")

            source = Source(broken)
            feed = Feed("numbers", source)
            feed.start()
            with pytest.raises(
                SourceError, match=r"numbers could not find its splits: OSError: .*broke"
            ) as info:
                await feed.wait_discovered()
            assert isinstance(info.value.__cause__, OSError)
            with pytest.raises(SourceError):
                await feed.take(0, 0, 1)
            assert await asyncio.to_thread(source.closed.wait, 10)

        told(story())

    @pytest.mark.parametrize("garbage", [object(), b"bytes", None, Split("text")])  # type: ignore[arg-type]
    def test_garbage_is_an_error(self, garbage: Any) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter([Split(b"1"), garbage])))
            feed.start()
            with pytest.raises(SourceError, match="instead of a Split of bytes"):
                await feed.wait_discovered()

        told(story())

    def test_a_split_that_is_the_data_itself_is_an_error(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter([Split(bytes(64 * 2**20))])))
            feed.start()
            with pytest.raises(SourceError, match="describes what to read"):
                await feed.wait_discovered()

        told(story())

    def test_a_source_of_nothing_is_over_at_once(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter(())))
            feed.start()
            assert await everything(feed, 0) == []
            assert not await feed.wait_for_surplus(1)

        told(story())

    def test_a_source_that_hangs_is_left_behind(self) -> None:
        never = threading.Event()

        def hanging() -> Iterator[Split]:
            yield Split(b"1")
            never.wait()

        async def story() -> None:
            source = Source(hanging)
            feed = Feed("f", source)
            feed.start()
            share = await feed.take(0, 0, 1)
            assert share.splits == (b"1",)
            waiting = asyncio.create_task(feed.take(0, share.after, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await feed.stop()
            assert source.closed.is_set()
            assert (await feed.take(0, 0, 1)).splits == (b"1",)

        try:
            told(story())
        finally:
            never.set()

    def test_an_async_source_is_a_source(self) -> None:
        async def pages() -> AsyncIterator[Split]:
            for number in range(100):
                await asyncio.sleep(0)
                yield Split(str(number).encode())

        async def story() -> None:
            feed = Feed("f", Source(pages))
            feed.start()
            assert len(await everything(feed, 0)) == 100

        told(story())

    def test_surplus_is_what_the_tasks_do_not_take(self) -> None:
        more = threading.Semaphore(0)

        def slowly() -> Iterator[Split]:
            for number in range(4):
                more.acquire()
                yield Split(str(number).encode())

        async def story() -> None:
            feed = Feed("f", Source(slowly))
            feed.start()
            first = asyncio.create_task(feed.take(0, 0, 1))
            surplus = asyncio.create_task(feed.wait_for_surplus(1))
            more.release()
            assert (await first).splits == (b"0",)
            assert not surplus.done()
            more.release()
            # Nobody has asked for the second: there is work for another task.
            assert await surplus
            more.release(2)
            await feed.wait_discovered()
            assert len(await everything(feed, 1)) == 3

        told(story())


@pytest.mark.parametrize("seed", range(5))
def test_sizes_of_a_heavy_tail_are_spread_evenly(seed: int) -> None:
    """1,000 splits, some of them hundreds of times as large as most, over 4 tasks that ask as real ones do.

    Time is the work that a task has done, a millisecond for 1,000 bytes: who comes to its last split first asks first.
    """
    chance = random.Random(seed)
    sizes = [int(1000 * min(chance.paretovariate(1.1), 500)) for _ in range(1000)]

    async def story() -> list[int]:
        feed = Feed("f", Source(lambda: splits(1000, lambda number: sizes[number])))
        feed.start()
        await feed.wait_discovered()
        tasks = [_Reading() for _ in range(4)]
        asking = [(0.0, number) for number in range(4)]
        while asking:
            now, number = heapq.heappop(asking)
            task = tasks[number]
            share = await feed.take(number, task.place, credits_for(task.read_by(now), now), tasks=4)
            task.place = share.after
            for split in share.splits:
                last_begins = max(task.busy_until, now)
                task.ends.append(last_begins + sizes[int(split)] / 1_000_000)
            if not share.over:
                # It asks when it takes the last split that it has, and reads that meanwhile.
                heapq.heappush(asking, (last_begins, number))
        assert sum(len(task.ends) for task in tasks) == 1000
        return list(feed.status().bytes_by_task)

    loads = told(story())
    assert sum(loads) == sum(sizes)
    assert max(loads) <= 1.2 * min(loads)


@dataclass
class _Reading:
    place: int = 0
    ends: list[float] = field(default_factory=list)

    @property
    def busy_until(self) -> float:
        return self.ends[-1] if self.ends else 0.0

    def read_by(self, moment: float) -> int:
        return bisect_right(self.ends, moment)


def test_taken_splits_do_not_stay_in_memory() -> None:
    async def story() -> None:
        feed = Feed(
            "f", Source(lambda: (Split(b"%0200d" % number) for number in range(20_000))), window_splits=512
        )
        tracemalloc.start()
        feed.start()
        assert await _count(feed, 0) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # The payloads alone are 4 MB; the window and the part of the ledger that is not on disk are not half of it.
        assert peak < 2.5 * 2**20
        assert (await feed.take(0, 0, 1)).splits == (b"%0200d" % 0,)
        feed.forget()

    told(story())


@pytest.mark.slow
def test_the_memory_of_a_million_splits_is_that_of_a_hundred_thousand() -> None:
    async def story(count: int) -> int:
        feed = Feed("f", Source(lambda: (Split(b"%0200d" % number) for number in range(count))))
        feed.start()
        assert sum(await asyncio.gather(*(_count(feed, task) for task in range(4)))) == count
        feed.forget()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    few, many = told(story(100_000)), told(story(1_000_000))
    assert many - few < 8 * 2**10  # KiB; the payloads alone would be 200 MB


async def _count(feed: Feed, task: int) -> int:
    after, found = 0, 0
    while True:
        share = await feed.take(task, after, 256, tasks=4)
        found += len(share.splits)
        after = share.after
        if share.over:
            return found
