# SPDX-License-Identifier: Apache-2.0
"""Runs the work of a driver at the same time, each job in a thread, and judges what came out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.errors import VolleyError

# Beyond the deadline of queries (`Arena.settings`) by what their cleaning up may take.
HANG_SECONDS = 240.0


@dataclass(frozen=True)
class Job:
    """`act` does the work natively. `check` says what is wrong with its answer, or with what a failed one left."""

    act: Callable[[], pa.Table | None]
    check: Callable[[pa.Table | None, bool], str | None]


@dataclass
class Outcome:
    """`problems` are wrong rows, hangs and leaks; `failures` are codes of queries that failed cleanly."""

    answers: int = 0
    native: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    table: pa.Table | None
    error: str = ""
    engine: str = ""


class Running:
    """Jobs that have been started."""

    def __init__(self, spark: SparkSession, jobs: Sequence[tuple[str, Job]]) -> None:
        self._jobs = {_start(spark, job): (name, job) for name, job in jobs}

    def wait(self, outcome: Outcome) -> set[Future[Answer]]:
        """Wait for all. Those that hang are a problem, and returned."""
        _, late = wait(self._jobs, timeout=HANG_SECONDS)
        for future in late:
            outcome.problems.append(f"{self._jobs[future][0]} hangs")
            # Now, while what hangs can still be looked at.
            print(f"  {outcome.problems[-1]}", flush=True)
        return late

    def judge(self, outcome: Outcome) -> None:
        """Compare the answers with Spark's."""
        for future, (name, job) in self._jobs.items():
            _judge(outcome, name, job, future)


def act(spark: SparkSession, job: Job) -> Answer:
    """Do the work here and now."""
    try:
        table = job.act()
    except (VolleyError, PySparkException) as error:
        return Answer(None, getattr(error, "code", "") or type(error).__name__)
    last = volley.last_query(spark)
    return Answer(table, engine=last.engine if last else "")


def _start(spark: SparkSession, job: Job) -> Future[Answer]:
    """Run a job in a thread that does not keep the process alive if it hangs, as one of a pool would."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(act(spark, job))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _judge(outcome: Outcome, name: str, job: Job, future: Future[Answer]) -> None:
    if not future.done():
        return
    if (crash := future.exception()) is not None:
        outcome.problems.append(f"{name}: {type(crash).__name__}: {crash}")
        return
    answer = future.result()
    if answer.error:
        outcome.failures[answer.error] += 1
    else:
        outcome.answers += 1
        outcome.native += answer.engine == "native"
    if problem := job.check(answer.table, bool(answer.error)):
        outcome.problems.append(f"{name}: {problem}")
