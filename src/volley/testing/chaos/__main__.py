# SPDX-License-Identifier: Apache-2.0
"""The command behind `make chaos`: work under faults for a while, then what happened. A failing round is shrunk."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from volley.testing.chaos.arena import STORES, TRANSPORTS, Arena
from volley.testing.chaos.report import Tally
from volley.testing.chaos.run import RoundReport, run_round
from volley.testing.chaos.schedule import Round, draw_round
from volley.testing.chaos.work import Work
from volley.testing.fuzz.choices import Choices, shrink
from volley.testing.fuzz.session import local_session

# A try takes as long as a round, and up to a minute more where something is left behind.
_SHRINK_TRIES = 8
# Starting the processes of an arena takes as long as several rounds.
_ROUNDS_PER_ARENA = 8


def run(
    spark: SparkSession,
    seed: int,
    seconds: float,
    transports: tuple[str, ...] = TRANSPORTS,
    stores: tuple[str, ...] = STORES,
) -> Tally:
    """Run rounds in one arena after the other until `seconds` have passed or one has a problem."""
    tally = Tally()
    deadline = time.monotonic() + seconds
    places = [(transport, store) for transport in transports for store in stores]
    with TemporaryDirectory(prefix="volley-chaos-") as directory:
        work = Work(spark, Path(directory), seed)
        number = 0
        while True:
            turn, within = divmod(number, _ROUNDS_PER_ARENA)
            transport, store = places[turn % len(places)]
            home = Path(directory) / f"arena-{turn}"
            with Arena(transport, store, home) as arena:
                while within < _ROUNDS_PER_ARENA:
                    if time.monotonic() > deadline or tally.problems:
                        return tally
                    _run_one(spark, arena, work, tally, f"{seed} {number}")
                    number, within = number + 1, within + 1
            tally.problems += [f"{path} is left in the spill directory" for path in arena.spilled()]


def _run_one(spark: SparkSession, arena: Arena, work: Work, tally: Tally, seed: str) -> None:
    choices = Choices(seed)
    plan = _draw(choices, arena)
    print(f"{seed}, {arena.transport} {arena.store}: {plan}", flush=True)
    report = run_round(spark, arena, work, plan, _number(seed))
    tally.add(arena.transport, arena.store, report)
    if report.problems:
        print(f"  {report.problems}", flush=True)
        print(f"  shrunk: {_shrink(spark, arena, work, choices, seed)}", flush=True)


def _shrink(spark: SparkSession, arena: Arena, work: Work, choices: Choices, seed: str) -> Round:
    """A round with fewer queries and faults that still fails."""

    def fails(made: list[int]) -> bool:
        again: RoundReport = run_round(spark, arena, work, _draw(Choices(replay=made), arena), _number(seed))
        return bool(again.problems)

    return _draw(Choices(replay=shrink(choices.made, fails, _SHRINK_TRIES)), arena)


def _draw(choices: Choices, arena: Arena) -> Round:
    return draw_round(choices, arena.kinds(), has_points=arena.transport == "flight")


def _number(seed: str) -> int:
    return int.from_bytes(seed.encode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--transports", default=",".join(TRANSPORTS))
    parser.add_argument("--stores", default=",".join(STORES))
    options = parser.parse_args()
    spark = local_session("volley chaos")
    spark.conf.set("spark.volley.history.dir", "off")
    tally = run(
        spark,
        options.seed,
        60 * options.minutes,
        tuple(options.transports.split(",")),
        tuple(options.stores.split(",")),
    )
    print(f"seed {options.seed}\n{tally}")
    for problem in tally.problems:
        print(f"  {problem}")
    spark.stop()
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
