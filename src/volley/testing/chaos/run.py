# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: work and faults at the same time, then answers, leaks and how each fault ended."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from volley.testing.chaos.arena import Arena, Countdown
from volley.testing.chaos.driver import OtherDriver
from volley.testing.chaos.faults import Fault, Kind
from volley.testing.chaos.jobs import HANG_SECONDS, Outcome, Running, act
from volley.testing.chaos.schedule import Round
from volley.testing.chaos.work import Work
from volley.testing.session import conf

# What lasts ends by then, or queries that wait for it would take until their deadline.
_LASTING_SECONDS = 6.0
# Longer than the lease of a driver on a worker, and of a query on a shuffle server.
_LEAK_SECONDS = 90.0
_STEP_SECONDS = 0.1
_LOOK_SECONDS = 0.005


@dataclass
class RoundReport(Outcome):
    struck: list[Fault] = field(default_factory=list)


class Rounds:
    """Runs rounds in an arena. `others` is a second driver, in a process of its own."""

    def __init__(
        self, spark: SparkSession, arena: Arena, work: Work, others: OtherDriver | None = None
    ) -> None:
        self._spark = spark
        self._arena = arena
        self._work = work
        self._others = others
        self._usual_seconds: dict[str, float] = {}

    def run(self, plan: Round, seed: int) -> RoundReport:
        """Run the queries of a round while its faults strike. The arena is healed afterwards."""
        report = RoundReport()
        jobs = [(name, job) for name in plan.queries if (job := self._work.job(name)) is not None]
        if not jobs:
            return report
        arena, over = self._arena, threading.Event()
        strike = self._striker(report, random.Random(seed), over)
        with conf(self._spark, arena.settings):
            usual_seconds = self._time_undisturbed(jobs[0][0], report)
            timers = [
                threading.Timer(fault.moment.share * usual_seconds, strike, (fault,))
                for fault in plan.faults
                if not fault.moment.point
            ]
            if self._others is not None and plan.others:
                self._others.begin(arena.settings, plan.others)
            arena.watch(Countdown(plan.faults, strike))
            resume = threading.Timer(_LASTING_SECONDS, arena.resume)
            for timer in (*timers, resume):
                timer.start()
            running = Running(self._spark, jobs)
            late = running.wait(report)
            over.set()
            for timer in timers:
                timer.join()
            resume.cancel()
            resume.join()
            arena.watch(None)
            arena.resume()
            wait(late, timeout=HANG_SECONDS)
            if self._others is not None and plan.others:
                self._others.finish(report)
            arena.heal()
            running.judge(report)
        report.problems += _wait_for_none(arena.leaks)
        return report

    def _striker(
        self, report: RoundReport, chance: random.Random, over: threading.Event
    ) -> Callable[[Fault], None]:
        lock = threading.Lock()

        def strike(fault: Fault) -> None:
            # Files to damage exist for a moment only: look for one until the work is done.
            while True:
                with lock:
                    if self._strike(fault, chance):
                        report.struck.append(fault)
                        return
                if not fault.kind.damages_files or over.wait(_LOOK_SECONDS):
                    return

        return strike

    def _strike(self, fault: Fault, chance: random.Random) -> bool:
        if fault.kind is Kind.KILL_DRIVER:
            return self._others is not None and self._others.kill()
        return self._arena.strike(fault, chance)

    def _time_undisturbed(self, name: str, report: RoundReport) -> float:
        """How many seconds a job takes without faults. A write is another job each time it is asked for."""
        if name not in self._usual_seconds:
            job = self._work.job(name)
            assert job is not None
            started = time.monotonic()
            answer = act(self._spark, job)
            self._usual_seconds[name] = time.monotonic() - started
            if problem := job.check(answer.table, bool(answer.error)):
                report.problems.append(f"{name} without faults: {problem}")
        return self._usual_seconds[name]


def _wait_for_none(leaks: Callable[[], list[str]]) -> list[str]:
    """What is still there after a while. Releases and the ends of processes take a moment."""
    deadline = time.monotonic() + _LEAK_SECONDS
    while (found := leaks()) and time.monotonic() < deadline:
        time.sleep(_STEP_SECONDS)
    return found
