# SPDX-License-Identifier: Apache-2.0
"""How many tasks Spark has run: the proof that a native query used none."""

from __future__ import annotations

from functools import lru_cache
from types import TracebackType
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

_DRAIN_MILLISECONDS = 10_000


def spark_tasks(spark: SparkSession) -> int:
    """Tasks that this application's executors have finished or are running, on all its sessions together.

    Spark counts from an event queue, so the queue is drained first; otherwise a task that has just ended is missed.
    """
    context = _drained(spark)
    executors = context.statusStore().executorList(False)
    return sum(
        executors.apply(index).totalTasks() + executors.apply(index).activeTasks()
        for index in range(executors.size())
    )


class SparkTasks:
    """Counts Spark's tasks while a block runs: `with SparkTasks(spark) as tasks: ...`, then `tasks.count`.

    If no job starts, there are none: those that end meanwhile belong to stages that were cancelled before.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.count = 0
        self._spark = spark
        self._scheduler = _scheduler(spark.sparkContext)
        self._before = 0
        self._jobs_before = 0

    def __enter__(self) -> SparkTasks:
        self._before = spark_tasks(self._spark)
        self._jobs_before = self._scheduler.numTotalJobs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scheduler.numTotalJobs() > self._jobs_before:
            self.count = spark_tasks(self._spark) - self._before


class ApplicationTasks:
    """Counts the tasks of the whole application while a block runs, those of other threads too."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._before = 0

    def __enter__(self) -> ApplicationTasks:
        self._before = spark_tasks(self._spark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tasks(self) -> int:
        return spark_tasks(self._spark) - self._before


class TaggedJobs:
    """Counts the tasks of the jobs that this thread starts while a block runs, whatever other threads do."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._scheduler = _scheduler(spark.sparkContext)
        self._jobs_before = 0

    def __enter__(self) -> TaggedJobs:
        self._spark.sparkContext.addJobTag(self._tag)
        self._jobs_before = self._scheduler.numTotalJobs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.sparkContext.removeJobTag(self._tag)

    def tasks(self) -> int:
        """Tasks of those jobs so far, skipped ones not counted."""
        if self._scheduler.numTotalJobs() == self._jobs_before:
            # No job of anybody: what every native query sees, and it need not wait for the event queue.
            return 0
        context = _drained(self._spark)
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(self._tag)]
        stages = {stage for job in jobs if job.isDefined() for stage in job.get().stageIds()}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        return sum(
            info.get().numCompletedTasks() + info.get().numActiveTasks() + info.get().numFailedTasks()
            for info in infos
            if info.isDefined()
        )


@lru_cache(maxsize=4)
def _scheduler(context: SparkContext) -> Any:
    return context._jsc.sc().dagScheduler()


def _drained(spark: SparkSession):  # type: ignore[no-untyped-def]  # a JVM object
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty(_DRAIN_MILLISECONDS)
    return context
