# SPDX-License-Identifier: Apache-2.0
"""Rounds of one seed, in one arena after the other. What goes wrong is run again, and shrunk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from volley.testing.chaos.arena import Arena
from volley.testing.chaos.driver import OtherDriver
from volley.testing.chaos.faults import Kind
from volley.testing.chaos.report import Tally
from volley.testing.chaos.resources import Footprint
from volley.testing.chaos.run import Rounds
from volley.testing.chaos.schedule import Round, draw_round, shrink_round
from volley.testing.chaos.work import Work
from volley.testing.fuzz.choices import Choices
from volley.testing.shrinking import shrink

ROUNDS_OF_A_TURN = 4
"""Starting the processes of an arena takes as long as a round or two, and so may waiting for what is left."""

# A try takes as long as a round, and minutes more where something is left behind.
_SHRINK_TRIES = 8


class Campaign:
    """Takes turns: each has a place, an arena and rounds. What queries have left behind is looked for at the end of a
    turn, and if there is anything, the rounds are run again, to find the one that leaves it."""

    def __init__(self, spark: SparkSession, seed: int, directory: Path, answers: Path | None = None) -> None:
        self.tally = Tally()
        self._spark = spark
        self._seed = seed
        self._directory = directory
        answers = answers or directory / "answers"
        self._work = Work(spark, directory, seed, answers)
        self._others = OtherDriver(directory / "other", answers, seed)

    def run(self, seconds: float, places: Sequence[tuple[str, str]], first: int = 0) -> Iterator[None]:
        """Run rounds from number `first` on until `seconds` have passed. Yields after each turn, which ends early if it
        has a problem."""
        deadline = time.monotonic() + seconds
        turn, within = divmod(first, ROUNDS_OF_A_TURN)
        try:
            while time.monotonic() < deadline:
                self._take_turn(deadline, turn, within, places[turn % len(places)])
                turn, within = turn + 1, 0
                yield
        finally:
            self._others.close()

    def _take_turn(self, deadline: float, turn: int, within: int, place: tuple[str, str]) -> None:
        began, before = time.monotonic(), len(self.tally.problems)
        with Arena(*place, self._directory / f"arena-{turn}-{within}") as arena:
            others = self._others if arena.transport != "local" else None
            rounds = Rounds(self._spark, arena, self._work, others)
            done: list[tuple[str, Round]] = []
            held: Footprint | None = None
            while within < ROUNDS_OF_A_TURN and time.monotonic() < deadline:
                seed = f"{self._seed} {turn * ROUNDS_OF_A_TURN + within}"
                plan = _draw(Choices(seed), arena)
                self._run_one(rounds, arena, plan, seed)
                if len(self.tally.problems) > before:
                    break
                done.append((seed, plan))
                held = held or Footprint.take(arena.daemons())
                within += 1
            else:
                self._look_for_leaks(rounds, arena, done, held)
        self._add_problems(done, [f"{path} is left in the spill directory" for path in arena.spilled()])
        self.tally.seconds += time.monotonic() - began

    def _run_one(self, rounds: Rounds, arena: Arena, plan: Round, seed: str) -> None:
        print(f"{seed}, {arena.transport} {arena.store}: {plan}", flush=True)
        began = time.monotonic()
        report = rounds.run(plan, seed)
        report.problems = [f"{seed}: {problem}" for problem in report.problems]
        self.tally.add(arena.transport, arena.store, report)
        print(
            f"  {len(report.struck)} of {report.drawn} faults in {time.monotonic() - began:.0f} s:"
            f" {report.answers} answers, {report.native} native, left to Spark {dict(report.replays)},"
            f" failed {dict(report.failures)}",
            flush=True,
        )
        if report.problems:
            print(f"  problems: {report.problems}", flush=True)
            least = shrink_round(plan, lambda less: bool(rounds.run(less, seed).problems), _SHRINK_TRIES)
            print(f"  shrunk: {least}", flush=True)

    def _look_for_leaks(
        self, rounds: Rounds, arena: Arena, done: list[tuple[str, Round]], held: Footprint | None
    ) -> None:
        found = rounds.wait_for_leaks(held)
        self._add_problems(done, found)
        if not found:
            return

        def leaks(some: tuple[tuple[str, Round], ...]) -> bool:
            before, held = set(rounds.wait_for_leaks()), Footprint.take(arena.daemons())
            for seed, plan in some:
                rounds.run(plan, seed)
            return bool(set(rounds.wait_for_leaks(held)) - before)

        least = shrink(tuple(done), _halves, leaks, _SHRINK_TRIES)
        print(f"  left by one of {', '.join(seed for seed, _ in least)}", flush=True)
        if len(least) == 1:
            ((seed, plan),) = least
            print(
                f"  shrunk: {shrink_round(plan, lambda less: leaks(((seed, less),)), _SHRINK_TRIES)}",
                flush=True,
            )

    def _add_problems(self, done: list[tuple[str, Round]], problems: list[str]) -> None:
        seeds = f"{done[0][0]} to {done[-1][0]}: " if done else ""
        for problem in problems:
            print(f"  problem: {seeds}{problem}", flush=True)
            self.tally.problems.append(seeds + problem)


def _halves(done: tuple[tuple[str, Round], ...]) -> Iterator[tuple[tuple[str, Round], ...]]:
    if len(done) > 1:
        half = len(done) // 2
        yield done[:half]
        yield done[half:]


def _draw(choices: Choices, arena: Arena) -> Round:
    kinds = arena.kinds()
    has_others = arena.transport != "local"
    # What a dead driver left in an object store is removed by a query that begins after its lease has ended.
    if has_others and arena.store in ("memory", "service"):
        kinds += (Kind.KILL_DRIVER,)
    return draw_round(choices, kinds, arena.points, has_others=has_others)
