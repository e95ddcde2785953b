# SPDX-License-Identifier: Apache-2.0
"""Runs the work of a driver at the same time, each job in a thread, and judges what came out."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.errors import VolleyError

HANG_SECONDS = 360.0
"""After so long a job hangs: twice the deadline of a query, for its end may be slow as well."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """`act` does the work natively. `check` says what is wrong with its answer, or with what a failed one left."""

    act: Callable[[], pa.Table | None]
    check: Callable[[pa.Table | None, bool], str | None]


@dataclass
class Outcome:
    """`problems` are wrong rows, hangs and leaks; `failures` counts the codes of queries that failed cleanly, and
    `replays` why Spark ran others."""

    answers: int = 0
    native: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    replays: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.answers += other.answers
        self.native += other.native
        self.failures += other.failures
        self.replays += other.replays
        self.problems += other.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a message."""
        return {
            name: getattr(self, name) for name in ("answers", "native", "failures", "replays", "problems")
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        failures, replays = Counter(values["failures"]), Counter(values["replays"])
        return cls(values["answers"], values["native"], failures, replays, list(values["problems"]))


@dataclass(frozen=True)
class Answer:
    table: pa.Table | None
    error: str = ""
    engine: str = ""
    why: str = ""
    """Why Spark ran it."""


class Running:
    """Jobs that `clients` threads do, one after the other. `on_begin` is called with the number of each, from 1."""

    def __init__(
        self,
        spark: SparkSession,
        jobs: Sequence[tuple[str, Job]],
        clients: int,
        on_begin: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._spark = spark
        self._jobs = jobs
        self._on_begin = on_begin
        self._waiting = iter(range(len(jobs)))
        self._lock = threading.Lock()
        self._begun: dict[int, float] = {}
        self._answers: dict[int, Answer | BaseException] = {}
        # A pool would keep the process alive if a job hangs.
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def wait(self, outcome: Outcome) -> None:
        """Wait for all. Those that hang are a problem, and left alone."""
        hanging: set[int] = set()
        while any(thread.is_alive() for thread in self._threads):
            now = time.monotonic()
            with self._lock:
                begun = {number: at for number, at in self._begun.items() if number not in self._answers}
            for number, at in begun.items():
                if number not in hanging and now - at > HANG_SECONDS:
                    hanging.add(number)
                    outcome.problems.append(f"{self._jobs[number][0]} hangs")
                    # Now, while what hangs can still be looked at.
                    print(f"  {outcome.problems[-1]}", flush=True)
                    faulthandler.dump_traceback()
            if hanging and hanging == set(begun):
                return
            self._threads[0].join(_LOOK_SECONDS)

    def judge(self, outcome: Outcome) -> None:
        """Compare the answers with Spark's."""
        for number, answer in sorted(self._answers.items()):
            _judge(outcome, *self._jobs[number], answer)

    def _run(self) -> None:
        while True:
            with self._lock:
                number = next(self._waiting, None)
                if number is None:
                    return
                self._begun[number] = time.monotonic()
            self._on_begin(number + 1)
            answer: Answer | BaseException
            try:
                answer = act(self._spark, self._jobs[number][1])
            except BaseException as error:
                answer = error
            with self._lock:
                self._answers[number] = answer


def act(spark: SparkSession, job: Job) -> Answer:
    """Do the work here and now."""
    try:
        table = job.act()
    except (VolleyError, PySparkException) as error:
        return Answer(None, getattr(error, "code", "") or type(error).__name__)
    last = volley.last_query(spark)
    if last is None or last.engine != "spark":
        return Answer(table, engine=last.engine if last else "")
    return Answer(table, engine="spark", why=str(last.reasons[0].reason) if last.reasons else "off")


def _judge(outcome: Outcome, name: str, job: Job, answer: Answer | BaseException) -> None:
    if isinstance(answer, BaseException):
        outcome.problems.append(f"{name}: {type(answer).__name__}: {answer}")
        return
    if answer.error:
        outcome.failures[answer.error] += 1
    else:
        outcome.answers += 1
        outcome.native += answer.engine == "native"
        if answer.why:
            outcome.replays[answer.why] += 1
    if problem := job.check(answer.table, bool(answer.error)):
        outcome.problems.append(f"{name}: {problem}")
