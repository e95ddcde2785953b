# SPDX-License-Identifier: Apache-2.0
"""Rows that wait between the engines: native ones in the stores of the native side, until Spark has read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from volley.bridge.reading import Access
from volley.coordinator.materialized_result import MaterializedResult
from volley.errors import CrossingError
from volley.plan.nodes import Node
from volley.shuffle.base import Block

_NOT_INSTALLED = "No module named 'volley'"


@dataclass(frozen=True)
class Rows:
    """The rows of a native plan: blocks, and how Spark's tasks get at them."""

    blocks: tuple[Block, ...]
    access: Access


class EngineBoundary:
    """What one query keeps for Spark. `start` computes a plan whose output is kept, by what the stack then owns."""

    def __init__(self, start: Callable[[Node, ExitStack], tuple[MaterializedResult, Access]]) -> None:
        self._start = start
        self._kept: list[MaterializedResult] = []
        self._resources = ExitStack()

    def rows(self, plan: Node) -> Rows:
        """The rows of a plan, which is run now; there while Spark reads them (`read_by_spark`)."""
        kept, access = self._start(plan, self._resources)
        self._kept.append(kept)
        self._resources.callback(kept.close)
        manifest = kept.manifest()
        return Rows(tuple(block for task in manifest.blocks for block in task if block.rows), access)

    @contextmanager
    def read_by_spark(self, *, commits: bool = False) -> Iterator[None]:
        """Around the jobs of Spark that read such rows. When they could not be read, that is raised, and not what Spark
        makes of it; afterwards they are gone.

        With `commits` the jobs leave something behind: once they have succeeded, nothing is raised any more.
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
        """Raise what has ended a native query before Spark was done with its rows."""
        for kept in self._kept:
            if ended := kept.early_end():
                raise ended

    def close(self) -> None:
        """Free what is kept. May be called again."""
        self._kept.clear()
        self._resources.close()


def _problem(said: str) -> CrossingError | None:
    """What went wrong between the engines, in a failure of Spark's."""
    mark = f"[{CrossingError.code}] "
    if mark in said:
        return CrossingError(said.partition(mark)[2].partition("\n")[0])
    if _NOT_INSTALLED in said:
        return CrossingError(
            "an executor of Spark cannot read native rows, because Volley is not installed there.",
            hint="Install it there as well, or set spark.volley.mixed=false.",
        )
    return None
