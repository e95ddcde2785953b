# SPDX-License-Identifier: Apache-2.0
"""Programs: Catalyst expressions that the JVM evaluates for one query.

    decide      programs = Programs(spark, origins); programs.prepare(...)      a number, which the plan holds
    lower       a function of DataFusion, named after the number
    a task      evaluate(number, columns)                                       to the JVM and back, a batch at a time

A number means something in this process only, and only while the `Programs` that prepared it are alive.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from volley.batches import make_batch
from volley.jvm.connections import EvaluationError, ExpressionServer, ServerUnavailable, expression_server
from volley.plan.capture import Origins
from volley.plan.expressions import Call, Expression, struct_of
from volley.plan.jvm import Java
from volley.plan.reader import describe_error
from volley.plan.types import STRING, DataType, contains_any, to_arrow

_numbers = itertools.count(1)


class Programs:
    """The programs of one query. They end with this object."""

    def __init__(self, spark: SparkSession, origins: Origins) -> None:
        """`origins` are those of the query's plan. Nothing happens in the JVM before it is needed."""
        self._spark = spark
        self._origins = origins
        self._lock = threading.Lock()
        self._conf: Java | None = None
        self._java: Java | None = None
        self._prepared: dict[int, _Program] = {}
        self._deferred: dict[Hashable, int] = {}

    def prepare(self, call: Call, read: Sequence[Expression]) -> int | str:
        """The number of a program that computes `call` from columns with the values of `read`; or why there is none.

        Equal expressions have one number.
        """
        return self.prepare_together((call,), read)

    def prepare_together(self, calls: Sequence[Call], read: Sequence[Expression]) -> int | str:
        """The number of a program that computes a struct with a field, `f0`, `f1`, ..., for each of several calls."""
        parts = self._origins.expressions((*calls, *read))
        if parts is None:
            return "it is not an expression of Spark's plan"
        number = next(_numbers)
        answer = self._compile(number, len(calls), parts)
        if answer == number:
            result = calls[0].type if len(calls) == 1 else struct_of(calls)
            self._add(_Program(number, self._server, _columns(read), result))
        return answer

    def prepare_aggregate(self, function: Call, read: Sequence[Expression]) -> int | str:
        """The number of a program that computes an aggregate function of groups; or why there is none.

        Its only argument is a column of groups: lists of structs with the values of `read`, one for each row.
        """
        parts = self._origins.expressions((function, *read))
        if parts is None:
            return "it is not an expression of Spark's plan"
        number = next(_numbers)
        answer = self._compile(number, 1, parts)
        if answer == number:
            rows = pa.struct(list(_columns(read)))
            groups = pa.schema([("c0", pa.list_(pa.field("element", rows, nullable=False)))])
            self._add(_Program(number, self._server, groups, function.type, of_groups=True))
        return answer

    def defer(self, key: Hashable, call: Call, read: Sequence[Expression]) -> int | None:
        """The number of a program that is only prepared when it is used, for what rarely happens.

        Calls with one `key` are equal, up to the columns that they read. None if there can be no program.
        """
        if key in self._deferred:
            return self._deferred[key]
        parts = self._origins.expressions((call, *read))
        if parts is None:
            return None
        self._settings()
        number = next(_numbers)

        def server() -> ExpressionServer:
            answer = self._compile(number, 1, parts)
            if answer != number:
                raise EvaluationError(str(answer))
            return self._server()

        self._add(_Program(number, server, _columns(read), call.type))
        self._deferred[key] = number
        return number

    def __bool__(self) -> bool:
        """Whether there is any program."""
        return bool(self._prepared)

    def _add(self, program: _Program) -> None:
        self._prepared[program.number] = _programs[program.number] = program

    def _compile(self, number: int, roots: int, parts: Java) -> int | str:
        """Let the JVM prepare a program: its number, that of an equal one, or a refusal."""
        try:
            with self._lock:
                if self._java is None:
                    # The jars that the session has added are found through this loader.
                    classes = self._spark._jsparkSession.sharedState().jarClassLoader()
                    self._java = self._server().java.programs(self._settings(), classes)
                answer = self._java.prepare(number, roots, parts)
        except (Py4JError, ServerUnavailable) as error:
            return describe_error(error)
        if answer is None:
            return number
        return int(answer) if answer.isdigit() else str(answer)

    def _server(self) -> ExpressionServer:
        return expression_server(self._spark.sparkContext._gateway)

    def _settings(self) -> Java:
        """A copy of the session's settings: the query keeps those that it was planned with."""
        if self._conf is None:
            self._conf = self._spark._jsparkSession.sessionState().conf().clone()
        return self._conf

    @property
    def rows(self) -> int:
        """How many rows the JVM has evaluated; a row counts for each program."""
        return sum(program.rows for program in self._prepared.values())

    @property
    def seconds(self) -> float:
        """How long threads have waited for the JVM, all together."""
        return sum(program.seconds for program in self._prepared.values())


def _columns(read: Sequence[Expression]) -> pa.Schema:
    return pa.schema([(f"c{place}", to_arrow(part.type)) for place, part in enumerate(read)])


class _Program:
    def __init__(
        self,
        number: int,
        server: Callable[[], ExpressionServer],
        arguments: pa.Schema,
        result: DataType,
        *,
        of_groups: bool = False,
    ) -> None:
        """`server` is asked once, when the program is first used. With `of_groups` the argument is a list of rows."""
        self.number = number
        self._find_server = server
        self._server: ExpressionServer | None = None
        self._input = arguments
        self._of_groups = of_groups
        self._output = pa.schema([("c0", to_arrow(result))])
        self._holds_text = contains_any(result, frozenset({STRING}))
        self._lock = threading.Lock()
        self.rows = 0
        self.seconds = 0.0

    def evaluate(self, columns: Sequence[pa.Array]) -> pa.Array:
        rows = len(columns[0])
        if not rows:
            return pa.array([], self._output.field(0).type)
        started = time.perf_counter()
        # A program without arguments is given a column for the number of rows alone.
        batch = make_batch(columns[: len(self._input)], self._input, rows)
        if rows > 1 and batch.nbytes > _MOST_BYTES:
            halves = [
                [column.slice(start, rows // 2 + 1) for column in columns] for start in (0, rows // 2 + 1)
            ]
            return pa.concat_arrays([self.evaluate(half) for half in halves])
        if batch.nbytes > _LARGEST_BYTES:
            raise EvaluationError("a group is larger than a message to the JVM")
        found = self._connect().evaluate(self.number, batch, self._output).column(0)
        if self._holds_text:
            # Spark's strings may hold any bytes, but those of the native engine are UTF-8.
            found.validate(full=True)
        with self._lock:
            self.rows += len(batch.column(0).flatten()) if self._of_groups else rows
            self.seconds += time.perf_counter() - started
        return found

    def _connect(self) -> ExpressionServer:
        with self._lock:
            if self._server is None:
                self._server = self._find_server()
            return self._server


# A message to the JVM is at most one buffer of Java. Groups of many rows are sent in several.
_MOST_BYTES = 256 * 2**20
_LARGEST_BYTES = 2**31 - 2**20

_programs: weakref.WeakValueDictionary[int, _Program] = weakref.WeakValueDictionary()


def evaluate(number: int, columns: Sequence[Any]) -> pa.Array:
    """The result of a program for these columns, at least one. LookupError when its query has ended.

    EvaluationError for what Spark's code raised, ArrowInvalid for text that is not UTF-8.
    """
    program = _programs.get(number)
    if program is None:
        raise LookupError(f"the query of program {number} has ended")
    return program.evaluate(columns)
