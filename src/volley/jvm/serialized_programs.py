# SPDX-License-Identifier: Apache-2.0
"""Programs for workers in other processes: the driver's JVM binds the expressions, and the plan carries them as bytes.

decide      programs = SerializedPrograms(spark, origins, find_problem); programs.prepare(...)      options of a call
a worker    loads the bytes into a JVM beside it (`worker_jvm.py`) when a batch first needs them
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

from pyspark.sql import SparkSession

from volley.jvm.compiler import Compiler, driver_versions
from volley.plan.capture import Origins
from volley.plan.expressions import Call, Expression, Options


class SerializedPrograms:
    """The programs of one query.

    `find_problem` is given the versions of Spark and Java, and says why the workers cannot evaluate any program; it is
    empty if they can.
    """

    def __init__(self, spark: SparkSession, origins: Origins, find_problem: Callable[[str], str]) -> None:
        self._spark = spark
        self._compiler = Compiler(spark, origins)
        self._find_problem = find_problem
        self._sent: dict[int, bytes | str] = {}
        self._deferred: dict[Hashable, Options | None] = {}
        # Workers use it to count rows and to end abandoned calls.
        self._query = secrets.token_hex(8)
        self._refusals: list[str] = []
        # What tasks count is in their metrics.
        self.rows, self.seconds = 0, 0.0

    def prepare(self, call: Call, read: Sequence[Expression]) -> Options | str:
        return self.prepare_together((call,), read)

    def prepare_together(self, calls: Sequence[Call], read: Sequence[Expression]) -> Options | str:
        return self._prepare(calls, read)

    def prepare_aggregate(
        self, function: Call, read: Sequence[Expression], *, complete: bool
    ) -> Options | str:
        return self._prepare((function,), read, complete=complete)

    def _prepare(
        self, calls: Sequence[Call], read: Sequence[Expression], *, complete: bool = False
    ) -> Options | str:
        parts = self._compiler.find((*calls, *read))
        if parts is None:
            return "it is not an expression of Spark's plan"
        if self._missing:
            return self._missing
        answer = self._compiler.compile(self._compiler.number(), len(calls), parts, complete=complete)
        if isinstance(answer, str):
            return answer
        if answer not in self._sent:
            self._sent[answer] = self._compiler.send(answer)
        content = self._sent[answer]
        if isinstance(content, str):
            self._refusals.append(content)
            return content
        return (
            ("program", content),
            ("width", len(read)),
            ("versions", self._versions),
            ("environment", self._environment),
            ("query", self._query),
        )

    def defer(self, key: Hashable, call: Call, read: Sequence[Expression]) -> Options | None:
        """The same as `prepare`: a worker cannot ask for a program later."""
        if key not in self._deferred:
            found = self.prepare(call, read)
            self._deferred[key] = None if isinstance(found, str) else found
        return self._deferred[key]

    def __bool__(self) -> bool:
        """Whether there is any program."""
        return any(isinstance(content, bytes) for content in self._sent.values())

    @property
    def problem(self) -> str:
        """Why workers cannot evaluate the programs; empty if they can, or if there are none."""
        asked: str = self.__dict__.get("_missing", "")
        return asked or "; ".join(dict.fromkeys(self._refusals))

    @cached_property
    def _missing(self) -> str:
        return self._find_problem(self._versions)

    @cached_property
    def _versions(self) -> str:
        return driver_versions(self._spark)

    @cached_property
    def _environment(self) -> str:
        return self._compiler.environment()
