# SPDX-License-Identifier: Apache-2.0
"""The chaos suite repeats a seed, strikes when it says, and finds no problem."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from volley.testing.chaos.__main__ import run
from volley.testing.chaos.arena import Arena, Countdown
from volley.testing.chaos.faults import Fault, Kind, Moment, damage_one, spill_files
from volley.testing.chaos.schedule import draw_round
from volley.testing.fuzz.choices import Choices, shrink


def test_a_seed_gives_the_same_round_and_a_round_can_be_shrunk() -> None:
    kinds = tuple(Kind)
    choices = Choices("7 1")
    drawn = draw_round(choices, kinds, has_points=True)
    assert drawn == draw_round(Choices("7 1"), kinds, has_points=True)
    assert drawn == draw_round(Choices(replay=choices.made), kinds, has_points=True)
    assert len({str(draw_round(Choices(f"7 {n}"), kinds, has_points=True)) for n in range(20)}) > 15

    def fails(made: list[int]) -> bool:
        return any(fault.kind is Kind.KILL for fault in draw_round(Choices(replay=made), kinds, True).faults)

    failing = next(
        c for n in range(100) if fails((c := Choices(f"8 {n}"), draw_round(c, kinds, True))[0].made)
    )
    least = draw_round(Choices(replay=shrink(failing.made, fails, 200)), kinds, True)
    assert [fault.kind for fault in least.faults] == [Kind.KILL]
    assert len(least.queries) == 1


def test_a_fault_strikes_at_its_message() -> None:
    third = Fault(Kind.CUT, 0, Moment("run", 3))
    struck: list[Fault] = []
    countdown = Countdown((third, Fault(Kind.CUT, 0, Moment(share=0.1))), struck.append)
    for point in ("run", "reserve", "run", "hello"):
        countdown(point)
    assert struck == []
    countdown("run")
    countdown("run")
    assert struck == [third]


@pytest.mark.parametrize("kind", [Kind.FLIP, Kind.TRUNCATE])
def test_files_without_a_name_are_damaged(tmp_path: Path, kind: Kind) -> None:
    before = set(spill_files(os.getpid()))
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        file.write(bytes(1000))
        file.flush()
        mine = set(spill_files(os.getpid())) - before
        assert len(mine) == 1
        assert damage_one(mine, kind, random.Random(3))
        file.seek(0)
        assert file.read() != bytes(1000)
    assert not damage_one([tmp_path / "gone"], kind, random.Random(3))


def test_a_spill_file_that_is_left_in_the_driver_is_a_leak(tmp_path: Path) -> None:
    spill = tmp_path / "volley-spill-1"
    spill.mkdir()
    with Arena("local", "memory", tmp_path / "arena") as arena:
        before = arena.leaks()
        with tempfile.TemporaryFile(dir=spill):
            (leak,) = set(arena.leaks()) - set(before)
        assert leak.startswith(f"{os.getpid()} has {spill}/")
        assert arena.leaks() == before


@pytest.mark.slow
def test_a_minute_of_chaos(spark: SparkSession) -> None:
    tally = run(spark, seed=11, seconds=60)
    assert tally.problems == []
    assert sum(tally.faults.values()) > 0
