# SPDX-License-Identifier: Apache-2.0
"""The command behind `make soak`: mixed load on three workers and three shuffle servers, with a fault now and then."""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from volley.testing.chaos.arena import Arena
from volley.testing.chaos.faults import Fault, Kind, Moment
from volley.testing.chaos.jobs import Outcome, act
from volley.testing.chaos.work import Work
from volley.testing.fuzz.session import local_session
from volley.testing.session import conf
from volley.testing.soak.picture import draw
from volley.testing.soak.samples import Sample, find_growth, take_sample

_CLIENTS = 2
_SAMPLE_SECONDS = 2.0
_FAULT_SECONDS = 20.0
_LASTING_SECONDS = 3.0
# None that replaces a process: a new one would hide what the old one leaked.
_KINDS = (Kind.CUT, Kind.SLOW, Kind.LOSE, Kind.STALL, Kind.STOP, Kind.EIO, Kind.FLIP)
_LOAD = ("q01", "q03", "q05", "q09", "q13", "q18", "q21", "udf-rows", "feed", "write-overwrite", "cached")


class Soak:
    """Queries of several threads and faults, while what daemons hold is measured."""

    def __init__(self, spark: SparkSession, arena: Arena, work: Work, seed: int) -> None:
        self._spark = spark
        self._arena = arena
        self._work = work
        self._seed = seed
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._latencies: list[float] = []
        self.samples: list[Sample] = []
        self.outcome = Outcome()
        self.faults: Counter[Kind] = Counter()

    def run(self, seconds: float) -> None:
        started = time.monotonic()
        with conf(self._spark, self._arena.settings):
            for name in _LOAD:
                self._work.job(name)
            threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(_CLIENTS)]
            threads.append(threading.Thread(target=self._strike))
            for thread in threads:
                thread.start()
            while time.monotonic() - started < seconds:
                self._over.wait(_SAMPLE_SECONDS)
                with self._lock:
                    latencies, self._latencies = self._latencies, []
                self.samples.append(
                    take_sample(
                        time.monotonic() - started, self._arena.daemons(), self._arena.directories, latencies
                    )
                )
            self._over.set()
            for thread in threads:
                thread.join()
        self._arena.heal()
        self.outcome.problems += find_growth(self.samples)

    def _ask(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        while not self._over.is_set():
            name = chance.choice(_LOAD)
            job = self._work.job(name)
            assert job is not None
            began = time.monotonic()
            answer = act(self._spark, job)
            seconds = time.monotonic() - began
            problem = job.check(answer.table, bool(answer.error))
            with self._lock:
                self._latencies.append(seconds)
                if answer.error:
                    self.outcome.failures[answer.error] += 1
                else:
                    self.outcome.answers += 1
                if problem:
                    self.outcome.problems.append(f"{name}: {problem}")

    def _strike(self) -> None:
        chance = random.Random(self._seed)
        while not self._over.wait(_FAULT_SECONDS):
            fault = Fault(chance.choice(_KINDS), chance.randrange(6), Moment())
            injection = self._arena.inject(fault, chance)
            self._over.wait(_LASTING_SECONDS)
            if injection is not None:
                self.faults[fault.kind] += self._arena.end(injection)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="where to draw what was measured, as SVG")
    options = parser.parse_args()
    spark = local_session("volley soak")
    spark.conf.set("spark.volley.history.dir", "off")
    with TemporaryDirectory(prefix="volley-soak-") as directory:
        work = Work(spark, Path(directory), options.seed)
        with Arena("flight", "service", Path(directory) / "arena") as arena:
            soak = Soak(spark, arena, work, options.seed)
            soak.run(60 * options.minutes)
    found, faults = soak.outcome, sum(soak.faults.values())
    title = f"{options.minutes:.0f} minutes: {found.answers} right answers, {faults} faults"
    if options.picture:
        options.picture.write_text(draw(soak.samples, title), encoding="utf-8")
    print(f"{title}; failed cleanly: {dict(found.failures)}; problems: {found.problems}")
    spark.stop()
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
