# SPDX-License-Identifier: Apache-2.0
"""The boundary from native rows to Spark: native rows stay in the shuffle stores until Spark has read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from volley.bridge.spark_task_reader import Access
from volley.coordinator.materialized_result import MaterializedResult
from volley.errors import CrossingError
from volley.plan.nodes import Node
from volley.shuffle.base import Block

_NOT_INSTALLED = "No module named 'volley'"


@dataclass(frozen=True)
class Rows:
    """The rows of a native plan: blocks, and how Spark's tasks read them."""

    blocks: tuple[Block, ...]
    access: Access


class EngineBoundary:
    """The rows that one query keeps for Spark.

    `start` runs a plan and keeps its output as long as the given stack is open.
    """

    def __init__(self, start: Callable[[Node, ExitStack], tuple[MaterializedResult, Access]]) -> None:
        self._start = start
        self._kept: list[MaterializedResult] = []
        self._resources = ExitStack()

    def rows(self, plan: Node) -> Rows:
        """Run a plan. Its rows exist while Spark reads them (`read_by_spark`)."""
        kept, access = self._start(plan, self._resources)
        self._kept.append(kept)
        self._resources.callback(kept.close)
        manifest = kept.manifest()
        return Rows(tuple(block for task in manifest.blocks for block in task if block.rows), access)

    @contextmanager
    def read_by_spark(self, *, commits: bool = False) -> Iterator[None]:
        """Encloses the Spark jobs that read these rows.

        If rows could not be read, raises that error instead of Spark's. Frees the rows at the end. With `commits` the
        jobs have side effects: once they succeed, nothing is raised.
        """
        try:
            yield
            if not commits:
                self._check()
        except (PySparkException, Py4JError) as error:
            self._check()
            if problem := _problem(str(error)):
                raise problem from error
            raise
        finally:
            self.close()

    def _check(self) -> None:
        """Raise the error of a native query that ended before Spark had read its rows."""
        for kept in self._kept:
            if ended := kept.early_end():
                raise ended

    def close(self) -> None:
        """Free the rows. Idempotent."""
        self._kept.clear()
        self._resources.close()


def _problem(said: str) -> CrossingError | None:
    """The boundary error behind a failure of Spark, if there is one."""
    mark = f"[{CrossingError.code}] "
    if mark in said:
        return CrossingError(said.partition(mark)[2].partition("\n")[0])
    if _NOT_INSTALLED in said:
        return CrossingError(
            "an executor of Spark cannot read native rows, because Volley is not installed there.",
            hint="Install it there as well, or set spark.volley.mixed=false.",
        )
    return None
