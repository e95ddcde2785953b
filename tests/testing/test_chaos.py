# SPDX-License-Identifier: Apache-2.0
"""The chaos suite repeats a seed, strikes when it says, and finds no problem."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from volley.testing.chaos.__main__ import Chaos
from volley.testing.chaos.agent import Trouble, inject_into_children, send
from volley.testing.chaos.arena import Arena, Countdown
from volley.testing.chaos.faults import Fault, Kind, Moment, damage_one, spill_files
from volley.testing.chaos.report import Tally
from volley.testing.chaos.schedule import Round, draw_round, shrink_round
from volley.testing.fuzz.choices import Choices

POINTS = ("hello", "run")


def test_a_seed_gives_the_same_round_and_a_round_can_be_shrunk() -> None:
    kinds = tuple(Kind)

    def draw(choices: Choices) -> Round:
        return draw_round(choices, kinds, POINTS, has_others=True)

    assert draw(Choices("7 1")) == draw(Choices("7 1"))
    assert len({str(draw(Choices(f"7 {n}"))) for n in range(20)}) > 15

    def fails(plan: Round) -> bool:
        return any(fault.kind is Kind.KILL for fault in plan.faults)

    failing = next(
        plan for n in range(100) if fails(plan := draw(Choices(f"8 {n}"))) and len(plan.faults) > 3
    )
    least = shrink_round(failing, fails, 200)
    assert [fault.kind for fault in least.faults] == [Kind.KILL]
    assert len(least.queries) == 1
    assert least.others == ()
    assert shrink_round(failing, fails, 1) != least


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


LISTENER = """
import os, sys, time
for line in sys.stdin:
    try:
        os.pwrite(int(sys.argv[1]), b"x", 0)
        said = "written"
    except OSError as error:
        said = os.strerror(error.errno)
    memory = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    print(said, round(time.time() - time.clock_gettime(time.CLOCK_REALTIME)), memory, flush=True)
"""


def test_a_process_suffers_what_it_is_told(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as file, inject_into_children(tmp_path / "agent"):
        process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[file.fileno()],
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> tuple[str, int, int]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            said, offset, memory = process.stdout.readline().rsplit(" ", 2)
            return said, int(offset), int(memory)

        try:
            assert ask()[:2] == ("written", 0)
            assert send(process.pid, Trouble.EIO)
            assert [ask()[0] for _ in range(4)] == ["Input/output error"] * 3 + ["written"]
            assert send(process.pid, Trouble.BEHIND)
            assert ask()[1] == -7200
            assert send(process.pid, Trouble.MEMORY)
            assert ask()[2] > 400
            assert send(process.pid, Trouble.NONE)
            assert ask()[1:] < (1, 400)
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()
    # A process that does not listen would be ended by the signal.
    assert not send(os.getppid(), Trouble.EIO)
    assert "PYTHONPATH" not in os.environ or str(tmp_path) not in os.environ["PYTHONPATH"]


def test_runs_are_added_up() -> None:
    one = Tally(rounds=2, answers=5, native=4)
    one.faults["flight", "memory", Kind.CUT] = 3
    one.failures["NO_WORKERS"] = 1
    both = Tally.from_dict(json.loads(json.dumps(one.to_dict()))) + one
    assert both.faults["flight", "memory", Kind.CUT] == 6
    assert "| cut connections | 6 | 6 |\n| all | 6 | 6 |" in str(both)
    assert str(both).endswith(
        "6 faults in 4 rounds: 10 right answers, 8 of them native; failed cleanly: NO_WORKERS 2; 0 problems"
    )


@pytest.mark.slow
def test_a_minute_of_chaos(spark: SparkSession, tmp_path: Path) -> None:
    chaos = Chaos(spark, 11, tmp_path)
    chaos.run(60, [("flight", "memory"), ("local", "file"), ("spark", "service")])
    assert chaos.tally.problems == []
    assert sum(chaos.tally.faults.values()) > 0
