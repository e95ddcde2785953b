"""Units are dealt evenly, each once, and the same to every attempt."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volley.plan.nodes import DataFile, FileScan
from volley.splits.feed import Feed, deal
from volley.splits.files import FileReader, FileSource, decode, encode
from volley.splits.source import Estimate, SplitSource, Unit
from volley.testing.contracts import SplitSourceContract, attempt_id


def scan_of(*sizes: int) -> FileScan:
    files = tuple(DataFile(f"/data/{number}.parquet", size, number) for number, size in enumerate(sizes))
    return FileScan("parquet", files, (), (), ())


class TestFileSource(SplitSourceContract):
    @pytest.fixture
    def make_source(self) -> Callable[[], SplitSource]:
        return lambda: FileSource(scan_of(5, 5, 9))


@given(
    path=st.text(),
    partition=st.tuples(
        st.none() | st.integers() | st.text() | st.binary() | st.booleans() | st.decimals(allow_nan=False)
    ),
)
def test_a_file_comes_back_from_its_unit(
    path: str, partition: tuple[int | str | bytes | Decimal | None]
) -> None:
    file = DataFile(path, 12, 34, partition)
    assert decode(encode(file)) == file


@given(sizes=st.lists(st.integers(0, 10**12), max_size=60), tasks=st.integers(1, 9))
def test_every_unit_is_dealt_once_and_evenly(sizes: list[int], tasks: int) -> None:
    units = [Unit(str(number).encode(), size) for number, size in enumerate(sizes)]
    dealt = deal(units, tasks)
    assert len(dealt) == tasks
    assert sorted(unit.payload for mine in dealt for unit in mine) == sorted(unit.payload for unit in units)
    loads = [sum(unit.size_bytes or 0 for unit in mine) for mine in dealt]
    # Giving the largest first to who has least never leaves two tasks further apart than one unit.
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_every_attempt_at_a_task_reads_the_same_files_in_the_order_of_the_scan() -> None:
    scan = scan_of(1, 8, 2, 4, 1)
    feed = Feed(0, FileSource(scan), 2)
    first, second, other = (feed.take(attempt_id(*key)) for key in ((0, 0), (0, 1), (1, 0)))
    assert first == second
    mine, theirs = (FileReader(scan).read(taken.units).files for taken in (first, other))
    assert set(mine) | set(theirs) == set(scan.files)
    assert not set(mine) & set(theirs)
    assert list(mine) == [file for file in scan.files if file in mine]
    assert feed.taken == {
        attempt_id(0, 0): len(mine),
        attempt_id(0, 1): len(mine),
        attempt_id(1, 0): len(theirs),
    }


def test_a_source_is_closed_also_when_it_fails() -> None:
    class Broken:
        closed = False

        def units(self):  # type: ignore[no-untyped-def]
            yield Unit(b"1")
            raise OSError("the listing broke off")

        def estimate(self) -> Estimate:
            return Estimate(1, 0, final=False)

        def close(self) -> None:
            self.closed = True

    source = Broken()
    with pytest.raises(OSError, match="broke off"):
        Feed(0, source, 1)
    assert source.closed
