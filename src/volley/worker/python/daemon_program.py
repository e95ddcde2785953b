# SPDX-License-Identifier: Apache-2.0
"""The program that a daemon's process runs: PySpark's daemon, whose workers refuse to tell about Spark's task.

The streams of a native query are not Spark's tasks, so a function that asks for its partition would get another answer.
The process need not have Volley: it gets this file as text, and as an argument that of `row_functions`, or nothing if
PySpark's own loops call the functions.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NoReturn


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


# PySpark's daemon takes for its worker what is called so.
_WORKER = "pyspark_worker_of_volley"


def call_functions_with(program: str) -> None:
    """Let the workers that the daemon forks use the loops of this program.

    They import PySpark's worker themselves: the daemon must not, because pandas and Arrow start threads.
    """
    worker_name = sys.argv[1]

    def main(infile: BinaryIO, outfile: BinaryIO) -> None:
        sys.argv[1] = worker_name
        worker = importlib.import_module(worker_name)
        loops = ModuleType("row_functions")
        exec(compile(program, "row_functions.py", "exec"), vars(loops))
        loops.install(worker)
        worker.main(infile, outfile)

    module = ModuleType(_WORKER)
    module.main = main  # type: ignore[attr-defined]
    sys.modules[_WORKER] = module
    sys.argv[1] = _WORKER


if __name__ == "__main__":
    if sys.path[0] == "":
        sys.path[0] = str(Path.cwd())  # as for a module that is run
    refuse_task_context()
    if program := sys.argv.pop():
        call_functions_with(program)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
