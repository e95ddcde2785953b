# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: work and faults at the same time, then answers, leaks and which faults hit anything."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from volley.testing.chaos.arena import Arena
from volley.testing.chaos.driver import OtherDriver
from volley.testing.chaos.faults import Fault, Kind
from volley.testing.chaos.injections import Injection
from volley.testing.chaos.jobs import Outcome, Running
from volley.testing.chaos.resources import Footprint
from volley.testing.chaos.schedule import Round
from volley.testing.chaos.timeline import Timeline
from volley.testing.chaos.work import Work
from volley.testing.session import conf

# Longer than the lease of a driver on a worker, and of a query on a shuffle server, on a machine that others use.
_LEAK_SECONDS = 150.0
_STEP_SECONDS = 0.1
_AGAIN_SECONDS = 0.1


@dataclass
class RoundReport(Outcome):
    """`drawn` is how many faults were to strike, `struck` what did, and hit something."""

    drawn: int = 0
    struck: list[Kind] = field(default_factory=list)


class Rounds:
    """Runs rounds in an arena. `others` is a second driver, in a process of its own."""

    def __init__(
        self, spark: SparkSession, arena: Arena, work: Work, others: OtherDriver | None = None
    ) -> None:
        self._spark = spark
        self._arena = arena
        self._work = work
        self._others = others

    def run(self, plan: Round, seed: str) -> RoundReport:
        """Run the queries of a round while its faults strike. The arena is healed afterwards."""
        report = RoundReport(drawn=len(plan.faults))
        jobs = [(name, job) for name in plan.queries if (job := self._work.job(name)) is not None]
        if not jobs:
            return report
        others = self._others if plan.others else None
        with conf(self._spark, self._arena.settings), Timeline() as timeline:
            if others is not None:
                self._work.answer(plan.others)
                others.prepare(self._arena.settings, plan.others)
            storm = _Storm(self._arena, others, plan, len(jobs), timeline, seed)
            self._arena.watch(storm.see)
            if others is not None:
                others.begin()
            running = Running(self._spark, jobs, plan.clients, lambda number: storm.see("", number))
            running.wait(report)
            self._arena.watch(None)
            report.struck = storm.end()
            if others is not None:
                others.finish(report)
            self._arena.heal()
            report.problems += self._arena.take_ended()
            running.judge(report)
        return report

    def wait_for_leaks(self, held: Footprint | None = None) -> list[str]:
        """What is still there after a while, also of processes that have grown since `held`. Releases, the ends of
        processes and of calls whose caller is gone take a moment."""
        deadline = time.monotonic() + _LEAK_SECONDS
        while (
            found := self._arena.leaks() + (held.growth() if held else [])
        ) and time.monotonic() < deadline:
            time.sleep(_STEP_SECONDS)
        return found


class _Storm:
    """The faults of a round, each at its moment."""

    def __init__(
        self,
        arena: Arena,
        others: OtherDriver | None,
        plan: Round,
        queries: int,
        timeline: Timeline,
        seed: str,
    ) -> None:
        self._arena = arena
        self._others = others
        self._timeline = timeline
        self._chance = random.Random(seed)
        self._countdown = Countdown(plan.faults, queries, self._begin)
        self._lock = threading.Lock()
        self._injections: list[tuple[Kind, Injection]] = []
        self._struck: list[Kind] = []
        self._is_over = False

    def see(self, point: str, number: int | None = None) -> None:
        """A message passes, or query `number` begins."""
        self._countdown(point, number)

    def end(self) -> list[Kind]:
        """End what is in force. Returns the kinds of the faults that have hit something."""
        with self._lock:
            self._is_over = True
            injections = list(self._injections)
        for injection in injections:
            self._end(injection)
        return self._struck

    def _begin(self, fault: Fault) -> None:
        if not fault.moment.point and fault.moment.seconds:
            self._timeline.after(fault.moment.seconds, lambda: self._strike(fault))
        else:
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if fault.kind.damages_files:
            # It may have to wait for something to strike. What calls this must not.
            threading.Thread(target=self._strike_now, args=(fault,), daemon=True).start()
        else:
            self._strike_now(fault)

    def _strike_now(self, fault: Fault) -> None:
        if self._is_over:
            return
        if fault.kind is Kind.KILL_DRIVER:
            if self._others is not None and self._others.kill():
                self._struck.append(fault.kind)
            return
        with self._lock:
            chance = random.Random(self._chance.random())
        injection = self._arena.inject(fault, chance)
        if injection is None:
            if not fault.kind.damages_files:
                # Another one is in force there.
                self._timeline.after(_AGAIN_SECONDS, lambda: self._strike_now(fault))
            return
        item = fault.kind, injection
        with self._lock:
            self._injections.append(item)
        self._timeline.after(0.0 if fault.kind is Kind.RESTART else fault.seconds, lambda: self._end(item))

    def _end(self, item: tuple[Kind, Injection]) -> None:
        with self._lock:
            if item not in self._injections:
                return
            self._injections.remove(item)
        kind, injection = item
        if self._arena.end(injection):
            self._struck.append(kind)


class Countdown:
    """Calls `strike` for each fault whose message passes, or whose query begins, when it does."""

    def __init__(self, faults: tuple[Fault, ...], queries: int, strike: Callable[[Fault], None]) -> None:
        self._waiting: dict[tuple[str, int], list[Fault]] = {}
        for fault in faults:
            # A shrunk round has fewer queries.
            count = fault.moment.count if fault.moment.point else min(fault.moment.count, queries)
            self._waiting.setdefault((fault.moment.point, count), []).append(fault)
        self._strike = strike
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str, number: int | None = None) -> None:
        """A message `point` passes; or, with an empty one, query `number` begins."""
        with self._lock:
            self._seen[point] += 1
            due = self._waiting.pop((point, self._seen[point] if number is None else number), [])
        for fault in due:
            self._strike(fault)
