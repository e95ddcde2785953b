# SPDX-License-Identifier: Apache-2.0
"""The command behind `make chaos`: work under faults for a while, then what happened. A failing round is shrunk."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from volley.testing.chaos.agent import inject_into_children
from volley.testing.chaos.arena import STORES, TRANSPORTS, Arena
from volley.testing.chaos.driver import OtherDriver
from volley.testing.chaos.faults import Kind
from volley.testing.chaos.report import Tally
from volley.testing.chaos.resources import Footprint
from volley.testing.chaos.run import Rounds
from volley.testing.chaos.schedule import Round, draw_round, shrink_round
from volley.testing.chaos.work import Work
from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.session import local_session
from volley.testing.s3 import KEYS

# A try takes as long as a round, and up to a minute more where something is left behind.
_SHRINK_TRIES = 8
# Starting the processes of an arena takes as long as several rounds.
_ROUNDS_PER_ARENA = 8


class Chaos:
    """Rounds of one seed, in one arena after the other."""

    def __init__(self, spark: SparkSession, seed: int, directory: Path) -> None:
        self.tally = Tally()
        self._spark = spark
        self._seed = seed
        self._directory = directory
        self._work = Work(spark, directory, seed)
        self._others = OtherDriver(directory / "other", seed)

    def run(self, seconds: float, places: Sequence[tuple[str, str]], first: int = 0) -> None:
        """Run rounds from number `first` on until `seconds` have passed or one has a problem."""
        deadline = time.monotonic() + seconds
        number = first
        try:
            while time.monotonic() < deadline and not self.tally.problems:
                turn, within = divmod(number, _ROUNDS_PER_ARENA)
                with Arena(*places[turn % len(places)], self._directory / f"arena-{number}") as arena:
                    others = self._others if arena.transport != "local" else None
                    rounds = Rounds(self._spark, arena, self._work, others)
                    held_before: Footprint | None = None
                    while within < _ROUNDS_PER_ARENA:
                        if time.monotonic() > deadline or self.tally.problems:
                            return
                        self._run_one(rounds, arena, f"{self._seed} {number}")
                        held_before = held_before or Footprint.take(arena.daemons())
                        number, within = number + 1, within + 1
                    self.tally.problems += held_before.growth() if held_before else []
                self.tally.problems += [f"{path} is left in the spill directory" for path in arena.spilled()]
        finally:
            self._others.close()

    def _run_one(self, rounds: Rounds, arena: Arena, seed: str) -> None:
        plan = _draw(Choices(seed), arena)
        print(f"{seed}, {arena.transport} {arena.store}: {plan}", flush=True)
        report = rounds.run(plan, _number(seed))
        self.tally.add(arena.transport, arena.store, report)
        if report.problems:
            print(f"  {report.problems}", flush=True)
            least = shrink_round(
                plan, lambda less: bool(rounds.run(less, _number(seed)).problems), _SHRINK_TRIES
            )
            print(f"  shrunk: {least}", flush=True)


def _draw(choices: Choices, arena: Arena) -> Round:
    kinds = arena.kinds()
    has_others = arena.transport != "local"
    # What a dead driver left in an object store is removed by a query that begins after its lease has ended.
    if has_others and arena.store in ("memory", "service"):
        kinds += (Kind.KILL_DRIVER,)
    return draw_round(choices, kinds, arena.points, has_others=has_others)


def _number(seed: str) -> int:
    return int.from_bytes(seed.encode(), "big")


def _add_to(path: Path, tally: Tally) -> None:
    before = Tally.from_dict(json.loads(path.read_text())) if path.exists() else Tally()
    path.write_text(json.dumps((before + tally).to_dict(), indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--transports", default=",".join(TRANSPORTS))
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--json", type=Path, help="a file to add what happened to")
    options = parser.parse_args()
    places = [
        (transport, store)
        for store in options.stores.split(",")
        for transport in options.transports.split(",")
    ]
    with TemporaryDirectory(prefix="volley-chaos-") as directory:
        # Also the JVM, whose children are the sidecars of transport spark.
        os.environ.update(KEYS)
        with inject_into_children(Path(directory) / "agent"):
            spark = local_session("volley chaos")
        spark.conf.set("spark.volley.history.dir", "off")
        chaos = Chaos(spark, options.seed, Path(directory))
        try:
            chaos.run(60 * options.minutes, places, options.first)
        finally:
            tally = chaos.tally
            if options.json:
                _add_to(options.json, tally)
            print(f"seed {options.seed}\n{tally}")
            for problem in tally.problems:
                print(f"  {problem}")
        spark.stop()
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
