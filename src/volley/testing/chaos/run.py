# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: work and faults at the same time, then answers, leaks and how each fault ended."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.errors import VolleyError
from volley.testing.chaos.arena import Arena, Countdown
from volley.testing.chaos.faults import Fault
from volley.testing.chaos.schedule import Round
from volley.testing.chaos.work import Job, Work
from volley.testing.session import conf

# Beyond the deadline of queries (`Arena.settings`) by what their cleaning up may take.
_HANG_SECONDS = 240.0
# What lasts ends by then, or queries that wait for it would take until their deadline.
_LASTING_SECONDS = 6.0
# Longer than the lease of a query on a shuffle server.
_LEAK_SECONDS = 45.0
_STEP_SECONDS = 0.1
_LOOK_SECONDS = 0.005


@dataclass
class RoundReport:
    """`problems` are wrong rows, hangs and leaks; `failures` are codes of queries that failed cleanly."""

    struck: list[Fault] = field(default_factory=list)
    answers: int = 0
    native: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def run_round(spark: SparkSession, arena: Arena, work: Work, plan: Round, seed: int) -> RoundReport:
    """Run the queries of a round while its faults strike. The arena is healed afterwards."""
    report = RoundReport()
    jobs = [(name, job) for name in plan.queries if (job := work.job(name)) is not None]
    if not jobs:
        return report
    chance, lock = random.Random(seed), threading.Lock()
    over = threading.Event()

    def strike(fault: Fault) -> None:
        # Files to damage exist for a moment only: look for one until the work is done.
        while True:
            with lock:
                if arena.strike(fault, chance):
                    report.struck.append(fault)
                    return
            if not fault.kind.damages_files or over.wait(_LOOK_SECONDS):
                return

    with conf(spark, arena.settings):
        usual_seconds = _time_undisturbed(spark, work, jobs[0][0], report)
        timers = [
            threading.Timer(fault.moment.share * usual_seconds, strike, (fault,))
            for fault in plan.faults
            if not fault.moment.point
        ]
        arena.watch(Countdown(plan.faults, strike))
        resume = threading.Timer(_LASTING_SECONDS, arena.resume)
        for timer in (*timers, resume):
            timer.start()
        running = {_start(spark, job): (name, job) for name, job in jobs}
        _, late = wait(running, timeout=_HANG_SECONDS)
        over.set()
        for timer in timers:
            timer.join()
        resume.cancel()
        resume.join()
        arena.watch(None)
        arena.resume()
        for future in late:
            report.problems.append(f"{running[future][0]} hangs")
            # Now, while what hangs can still be looked at.
            print(f"  {report.problems[-1]}", flush=True)
        wait(late, timeout=_HANG_SECONDS)
        arena.heal()
        for future, (name, job) in running.items():
            _judge(report, name, job, future)
    report.problems += _wait_for_none(arena.leaks)
    return report


@dataclass(frozen=True)
class _Answer:
    table: pa.Table | None
    error: str = ""
    engine: str = ""


def _time_undisturbed(spark: SparkSession, work: Work, name: str, report: RoundReport) -> float:
    """How many seconds a job takes without faults. A write is another job each time it is asked for."""
    job = work.job(name)
    assert job is not None
    started = time.monotonic()
    answer = _act(spark, job)
    seconds = time.monotonic() - started
    if problem := job.check(answer.table, bool(answer.error)):
        report.problems.append(f"{name} without faults: {problem}")
    return seconds


def _start(spark: SparkSession, job: Job) -> Future[_Answer]:
    """Run a job in a thread that does not keep the process alive if it hangs, as one of a pool would."""
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(_act(spark, job))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _act(spark: SparkSession, job: Job) -> _Answer:
    try:
        table = job.act()
    except (VolleyError, PySparkException) as error:
        return _Answer(None, getattr(error, "code", "") or type(error).__name__)
    last = volley.last_query(spark)
    return _Answer(table, engine=last.engine if last else "")


def _judge(report: RoundReport, name: str, job: Job, future: Future[_Answer]) -> None:
    if not future.done():
        return
    if (crash := future.exception()) is not None:
        report.problems.append(f"{name}: {type(crash).__name__}: {crash}")
        return
    answer = future.result()
    if answer.error:
        report.failures[answer.error] += 1
    else:
        report.answers += 1
        report.native += answer.engine == "native"
    if problem := job.check(answer.table, bool(answer.error)):
        report.problems.append(f"{name}: {problem}")


def _wait_for_none(leaks: Callable[[], list[str]]) -> list[str]:
    """What is still there after a while. Releases and the ends of processes take a moment."""
    deadline = time.monotonic() + _LEAK_SECONDS
    while (found := leaks()) and time.monotonic() < deadline:
        time.sleep(_STEP_SECONDS)
    return found
