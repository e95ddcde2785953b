"""A feed: bounded, each unit once, the same to every attempt at a task, and over when its source is."""

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
from volley.splits.source import Estimate, SplitSource, Unit
from volley.stages.scans import MIN_SPLIT_BYTES, scan_tasks
from volley.testing.contracts import SplitSourceContract
from volley.worker.intake import credits_for


def scan_of(*sizes: int) -> FileScan:
    files = tuple(DataFile(f"/data/{number}.parquet", size, number) for number, size in enumerate(sizes))
    return FileScan("parquet", files, (), (), ())


class Source:
    """Gives what it is told to; remembers that it was closed, and how far it was asked."""

    schema = pa.schema([])

    def __init__(self, units: Callable[[], Iterator[Any] | AsyncIterator[Any]]) -> None:
        self._make = units
        self.closed = threading.Event()
        self.asked = 0

    def units(self) -> Any:
        found = self._make()
        if isinstance(found, AsyncIterator):
            return found
        return self._counted(found)

    def _counted(self, units: Iterator[Any]) -> Iterator[Any]:
        for unit in units:
            self.asked += 1
            yield unit

    def estimate(self) -> Estimate:
        return Estimate(self.asked, 0, final=False)

    def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()


def units(count: int, size: Callable[[int], int | None] = lambda number: None) -> Iterator[Unit]:
    return (Unit(str(number).encode(), size(number)) for number in range(count))


def told(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(story, 60))


async def everything(feed: Feed, task: int, credits: int = 7) -> list[bytes]:
    found: list[bytes] = []
    after = 0
    while True:
        share = await feed.take(task, after, credits)
        found += share.units
        after = share.after
        if share.over:
            return found


class TestFileSource(SplitSourceContract):
    @pytest.fixture
    def make_source(self) -> Callable[[], SplitSource]:
        return lambda: FileSource(scan_of(5, 5, 9, 3 * MIN_SPLIT_BYTES), 2)


class TestFiles:
    @given(
        path=st.text(),
        partition=st.tuples(
            st.none() | st.integers() | st.text() | st.binary() | st.booleans() | st.decimals(allow_nan=False)
        ),
    )
    def test_a_file_comes_back_from_its_unit(
        self, path: str, partition: tuple[int | str | bytes | Decimal | None]
    ) -> None:
        files = (DataFile(path, 12, 34, partition), DataFile(path, 1, 2, partition))
        for piece in (Piece(files), Piece(files[:1], 3, 7)):
            assert decode(encode(piece)) == piece

    @given(
        sizes=st.lists(st.integers(0, 50 * MIN_SPLIT_BYTES), min_size=1, max_size=60), tasks=st.integers(1, 9)
    )
    def test_every_part_of_every_file_is_in_one_unit(self, sizes: list[int], tasks: int) -> None:
        scan = scan_of(*sizes)
        found: dict[str, list[tuple[int, int]]] = {}
        for unit in FileSource(scan, tasks).units():
            piece = decode(unit.payload)
            for file in piece.files:
                found.setdefault(file.path, []).append((piece.part, piece.parts))
        assert set(found) == {file.path for file in scan.files}
        for parts in found.values():
            assert sorted(parts) == [(part, len(parts)) for part in range(len(parts))]

    def test_a_huge_file_is_for_all_workers_and_many_small_ones_go_together(self) -> None:
        huge = scan_of(100 * MIN_SPLIT_BYTES)
        assert scan_tasks(huge, 4) == 4
        assert len(list(FileSource(huge, 4).units())) >= 16
        small = scan_of(*[1000] * 10_000)
        assert scan_tasks(small, 4) == 4
        assert 24 <= len(list(FileSource(small, 4).units())) < 1000
        assert scan_tasks(scan_of(10), 4) == 1


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
    def test_every_unit_goes_to_one_task(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: units(1000)))
            feed.start()
            found = await asyncio.gather(*(everything(feed, task) for task in range(4)))
            assert sorted(unit for mine in found for unit in mine) == sorted(
                unit.payload for unit in units(1000)
            )
            status = feed.status()
            assert (status.found, status.queued, sum(status.by_task), status.final) == (1000, 0, 1000, True)

        told(story())

    def test_every_attempt_at_a_task_reads_the_same_and_then_goes_on(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: units(20)))
            feed.start()
            await feed.over()
            first = await feed.take(0, 0, 5)
            other = await feed.take(1, 0, 5)
            # The attempt at task 0 fails here. The next one begins with what the first had, and takes more.
            again = await everything(feed, 0)
            assert again[: len(first.units)] == list(first.units)
            assert not set(again) & set(other.units)
            assert sorted([*again, *await everything(feed, 1)]) == sorted(u.payload for u in units(20))
            assert await everything(feed, 0) == again

        told(story())

    def test_two_attempts_at_once_read_the_same(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: units(500)), window_units=16)
            feed.start()
            # Spark may run a task twice and take whichever ends first; another task takes what it can meanwhile.
            one, two, other = await asyncio.gather(
                everything(feed, 0, credits=3), everything(feed, 0, credits=7), everything(feed, 1)
            )
            assert one == two
            assert sorted([*one, *other]) == sorted(unit.payload for unit in units(500))

        told(story())

    def test_a_committed_task_gets_no_more(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: units(20)))
            feed.start()
            await feed.over()
            first = await feed.take(0, 0, 5)
            feed.commit(0)
            assert await everything(feed, 0) == list(first.units)
            assert feed.status().done == len(first.units)
            # Also one that read nothing, because its plan did not ask for it.
            feed.commit(1)
            assert await everything(feed, 1) == []

        told(story())

    def test_the_largest_go_first(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: units(100, lambda number: number % 10)))
            feed.start()
            await feed.over()
            found = [int(unit) % 10 for unit in await everything(feed, 0, credits=1)]
            assert found == sorted(found, reverse=True)

        told(story())

    def test_units_go_to_where_they_are_near(self) -> None:
        async def story() -> None:
            hosts = [Unit(b"a", 9, hosts=("x",)), Unit(b"b", 5, hosts=("y",)), Unit(b"c", 1, hosts=("x",))]
            feed = Feed("f", Source(lambda: iter(hosts)))
            feed.start()
            await feed.over()
            assert (await feed.take(0, 0, 1, "y")).units == (b"b",)
            assert (await feed.take(1, 0, 1, "z")).units == (b"a",)
            assert (await feed.take(2, 0, 1, "y")).units == (b"c",)

        told(story())

    @pytest.mark.parametrize("limits", [{"window_units": 10}, {"window_bytes": 10}])
    def test_discovery_waits_for_tasks(self, limits: dict[str, int]) -> None:
        async def story() -> None:
            source = Source(lambda: (Unit(b"1") for _ in iter(int, 1)))
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
            def broken() -> Iterator[Unit]:
                yield Unit(b"1")
                raise OSError("the listing broke off")

            source = Source(broken)
            feed = Feed("numbers", source)
            feed.start()
            with pytest.raises(
                SourceError, match=r"numbers could not find its units: OSError: .*broke"
            ) as info:
                await feed.over()
            assert isinstance(info.value.__cause__, OSError)
            with pytest.raises(SourceError):
                await feed.take(0, 0, 1)
            assert await asyncio.to_thread(source.closed.wait, 10)

        told(story())

    @pytest.mark.parametrize("garbage", [object(), b"bytes", None, Unit("text")])  # type: ignore[arg-type]
    def test_garbage_is_an_error(self, garbage: Any) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter([Unit(b"1"), garbage])))
            feed.start()
            with pytest.raises(SourceError, match="where a Unit of bytes was expected"):
                await feed.over()

        told(story())

    def test_a_unit_that_is_the_data_itself_is_an_error(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter([Unit(bytes(64 * 2**20))])))
            feed.start()
            with pytest.raises(SourceError, match="says what to read"):
                await feed.over()

        told(story())

    def test_a_source_of_nothing_is_over_at_once(self) -> None:
        async def story() -> None:
            feed = Feed("f", Source(lambda: iter(())))
            feed.start()
            assert await everything(feed, 0) == []
            assert not await feed.surplus(1)

        told(story())

    def test_a_source_that_hangs_is_left_behind(self) -> None:
        never = threading.Event()

        def hanging() -> Iterator[Unit]:
            yield Unit(b"1")
            never.wait()

        async def story() -> None:
            source = Source(hanging)
            feed = Feed("f", source)
            feed.start()
            share = await feed.take(0, 0, 1)
            assert share.units == (b"1",)
            waiting = asyncio.create_task(feed.take(0, share.after, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await feed.stop()
            assert source.closed.is_set()
            assert (await feed.take(0, 0, 1)).units == (b"1",)

        try:
            told(story())
        finally:
            never.set()

    def test_an_async_source_is_a_source(self) -> None:
        async def pages() -> AsyncIterator[Unit]:
            for number in range(100):
                await asyncio.sleep(0)
                yield Unit(str(number).encode())

        async def story() -> None:
            feed = Feed("f", Source(pages))
            feed.start()
            assert len(await everything(feed, 0)) == 100

        told(story())

    def test_surplus_is_what_the_tasks_do_not_take(self) -> None:
        more = threading.Semaphore(0)

        def slowly() -> Iterator[Unit]:
            for number in range(4):
                more.acquire()
                yield Unit(str(number).encode())

        async def story() -> None:
            feed = Feed("f", Source(slowly))
            feed.start()
            first = asyncio.create_task(feed.take(0, 0, 1))
            surplus = asyncio.create_task(feed.surplus(1))
            more.release()
            assert (await first).units == (b"0",)
            assert not surplus.done()
            more.release()
            # Nobody has asked for the second: there is work for another task.
            assert await surplus
            more.release(2)
            await feed.over()
            assert len(await everything(feed, 1)) == 3

        told(story())


@pytest.mark.parametrize("seed", range(5))
def test_sizes_of_a_heavy_tail_are_spread_evenly(seed: int) -> None:
    """1,000 units, some of them hundreds of times as large as most, over 4 tasks that ask as real ones do.

    Time is the work that a task has done, a millisecond for 1,000 bytes: who comes to its last unit first asks first.
    """
    chance = random.Random(seed)
    sizes = [int(1000 * min(chance.paretovariate(1.1), 500)) for _ in range(1000)]

    async def story() -> list[int]:
        feed = Feed("f", Source(lambda: units(1000, lambda number: sizes[number])))
        feed.start()
        await feed.over()
        tasks = [_Reading() for _ in range(4)]
        asking = [(0.0, number) for number in range(4)]
        while asking:
            now, number = heapq.heappop(asking)
            task = tasks[number]
            share = await feed.take(number, task.place, credits_for(task.read_by(now), now), tasks=4)
            task.place = share.after
            for unit in share.units:
                last_begins = max(task.busy_until, now)
                task.ends.append(last_begins + sizes[int(unit)] / 1_000_000)
            if not share.over:
                # It asks when it takes the last unit that it has, and reads that meanwhile.
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


def test_taken_units_do_not_stay_in_memory() -> None:
    async def story() -> None:
        feed = Feed(
            "f", Source(lambda: (Unit(b"%0200d" % number) for number in range(20_000))), window_units=512
        )
        tracemalloc.start()
        feed.start()
        assert await _count(feed, 0) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # The payloads alone are 4 MB; the window and the part of the ledger that is not on disk are not half of it.
        assert peak < 2.5 * 2**20
        assert (await feed.take(0, 0, 1)).units == (b"%0200d" % 0,)
        feed.forget()

    told(story())


@pytest.mark.slow
def test_the_memory_of_a_million_units_is_that_of_a_hundred_thousand() -> None:
    async def story(count: int) -> int:
        feed = Feed("f", Source(lambda: (Unit(b"%0200d" % number) for number in range(count))))
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
        found += len(share.units)
        after = share.after
        if share.over:
            return found
