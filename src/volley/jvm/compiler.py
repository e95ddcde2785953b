# SPDX-License-Identifier: Apache-2.0
"""Compiles expressions of a captured plan in the driver's JVM, for one query."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from volley.jvm.connections import ExpressionServer, ServerUnavailable, expression_server
from volley.jvm.java import SENT_PACKAGES, join_versions
from volley.plan.capture import Origins
from volley.plan.expressions import Expression
from volley.plan.jvm import Java
from volley.plan.reader import describe_error

_numbers = itertools.count(1)


def driver_versions(spark: SparkSession) -> str:
    """The versions of Spark and Java, which workers must have too."""
    gateway: Java = spark.sparkContext._gateway
    return join_versions(spark.version, str(gateway.jvm.java.lang.Runtime.version().feature()))


class Compiler:
    """The JVM keeps the programs that it compiles as long as this object lives."""

    def __init__(self, spark: SparkSession, origins: Origins) -> None:
        """`origins` are those of the query's plan. Nothing happens in the JVM before it is needed."""
        self._spark = spark
        self._origins = origins
        self._lock = threading.Lock()
        self._conf: Java | None = None
        self._java: Java | None = None

    def find(self, expressions: Sequence[Expression]) -> Java | None:
        """The Catalyst expressions of these, as a list of Java; None if one is not of Spark's plan."""
        return self._origins.expressions(expressions)

    def number(self) -> int:
        """The number of a new program, which captures the current settings of the session."""
        self._settings()
        return next(_numbers)

    def compile(self, number: int, roots: int, parts: Java, *, complete: bool = False) -> int | str:
        """Let the JVM prepare a program: its number, that of an equal one, or a refusal.

        `complete`: an aggregate function whose state is not merged.
        """
        try:
            with self._lock:
                if self._java is None:
                    # The jars that the session has added are found through this loader.
                    classes = self._spark._jsparkSession.sharedState().jarClassLoader()
                    self._java = self.server().java.programs(self._settings(), classes)
                answer = self._java.prepare(number, roots, complete, parts)
        except (Py4JError, ServerUnavailable) as error:
            return describe_error(error)
        if answer is None:
            return number
        return int(answer) if answer.isdigit() else str(answer)

    def send(self, number: int) -> bytes | str:
        """A compiled program as bytes for the JVM of another process; or why it cannot be sent."""
        try:
            with self._lock:
                assert self._java is not None, "it was compiled"
                sent = self._java.send(number, ";".join(SENT_PACKAGES))
        except Py4JError as error:
            return describe_error(error)
        return sent if isinstance(sent, str) else bytes(sent)

    def environment(self) -> str:
        """The options of a JVM that has the defaults of this one."""
        return str(self.server().java.environment())

    def server(self) -> ExpressionServer:
        return expression_server(self._spark.sparkContext._gateway)

    def _settings(self) -> Java:
        """A copy of the session's settings: the query keeps those that it was planned with."""
        if self._conf is None:
            self._conf = self._spark._jsparkSession.sessionState().conf().clone()
        return self._conf
