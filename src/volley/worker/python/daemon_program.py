# SPDX-License-Identifier: Apache-2.0
"""The program that a daemon's process runs: PySpark's daemon, whose workers refuse to tell about Spark's task.

The streams of a native query are not Spark's tasks, so a function that asks for its partition would get another answer.
The process need not have Volley: it gets this file as text.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn


class NoSparkTask(BaseException):
    """Not an Exception, so that functions do not handle it by chance. Spark runs the query then."""


class _Mark:
    """Stands among the accumulators, whose number a worker reports at its end, if a function handles even that."""

    _value = 0


def refuse_task_context() -> None:
    """Make every question to a TaskContext fail, and note that it was asked."""
    from pyspark import accumulators
    from pyspark.taskcontext import TaskContext

    def refuse(self: TaskContext, *arguments: Any) -> NoReturn:
        accumulators._accumulatorRegistry[-1] = _Mark()  # type: ignore[assignment]
        raise NoSparkTask("a function asks for the TaskContext of Spark's task")

    for name in (
        "stageId",
        "partitionId",
        "attemptNumber",
        "taskAttemptId",
        "getLocalProperty",
        "cpus",
        "cpuAmount",
        "resources",
    ):
        setattr(TaskContext, name, refuse)


if __name__ == "__main__":
    if sys.path[0] == "":
        sys.path[0] = str(Path.cwd())  # as for a module that is run
    refuse_task_context()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
