# SPDX-License-Identifier: Apache-2.0
"""Programs: Catalyst expressions that the JVM evaluates for one query.

    decide      programs = Programs(spark, origins); programs.prepare(...)      options of a call, with a number
    lower       a function of DataFusion, named after the number
    a task      evaluate(number, columns)                                       to the JVM and back, a batch at a time

A number means something in this process only, and only while the `Programs` that prepared it are alive. Programs for
workers in other processes are in `serialized_programs.py`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from volley.jvm.compiler import Compiler
from volley.jvm.connection import EvaluationError
from volley.jvm.connections import ExpressionServer
from volley.jvm.signature import Signature
from volley.plan.capture import Origins
from volley.plan.expressions import Call, Expression, Options, struct_of

_NO_ORIGIN = "it is not an expression of Spark's plan"


class Programs:
    """The programs of one query, for tasks in this process. They end with this object."""

    def __init__(self, spark: SparkSession, origins: Origins) -> None:
        """`origins` are those of the query's plan. Nothing happens in the JVM before it is needed."""
        self._compiler = Compiler(spark, origins)
        self._prepared: dict[int, _Program] = {}
        self._deferred: dict[Hashable, Options] = {}

    def prepare(self, call: Call, read: Sequence[Expression]) -> Options | str:
        """The options of a call that computes `call` from columns with the values of `read`; or why there is none.

        Equal expressions have one number.
        """
        return self.prepare_together((call,), read)

    def prepare_together(self, calls: Sequence[Call], read: Sequence[Expression]) -> Options | str:
        """The same for a struct with a field, `f0`, `f1`, ..., for each of several calls."""
        result = calls[0].type if len(calls) == 1 else struct_of(calls)
        return self._prepare(calls, read, Signature.of_rows([part.type for part in read], result))

    def prepare_aggregate(
        self, function: Call, read: Sequence[Expression], *, complete: bool
    ) -> Options | str:
        """The same for an aggregate function of groups.

        Its only argument is a column of groups: lists of states, which are lists of structs with the values of `read`,
        one for each row. If it is `complete`, there is one state, which is not merged.
        """
        types = [part.type for part in read]
        signature = Signature.of_rows_in_groups(types, function.type)
        return self._prepare((function,), read, signature, complete=complete)

    def defer(self, key: Hashable, call: Call, read: Sequence[Expression]) -> Options | None:
        """The options for a program that is only prepared when it is used, for what rarely happens.

        Calls with one `key` are equal, up to the columns that they read. None if there can be no program.
        """
        if key in self._deferred:
            return self._deferred[key]
        parts = self._compiler.find((call, *read))
        if parts is None:
            return None
        number = self._compiler.number()

        def server() -> ExpressionServer:
            answer = self._compiler.compile(number, 1, parts)
            if answer != number:
                raise EvaluationError(str(answer))
            return self._compiler.server()

        self._add(number, server, Signature.of_rows([part.type for part in read], call.type))
        self._deferred[key] = _name(number)
        return self._deferred[key]

    def __bool__(self) -> bool:
        """Whether there is any program."""
        return bool(self._prepared)

    @property
    def problem(self) -> str:
        """Why the workers have no JVM: they are this process, which has one."""
        return ""

    def _prepare(
        self,
        calls: Sequence[Call],
        read: Sequence[Expression],
        signature: Signature,
        *,
        complete: bool = False,
    ) -> Options | str:
        parts = self._compiler.find((*calls, *read))
        if parts is None:
            return _NO_ORIGIN
        number = self._compiler.number()
        answer = self._compiler.compile(number, len(calls), parts, complete=complete)
        if isinstance(answer, str):
            return answer
        if answer == number:
            self._add(number, self._compiler.server, signature)
        return _name(answer)

    def _add(self, number: int, server: Callable[[], ExpressionServer], signature: Signature) -> None:
        self._prepared[number] = _programs[number] = _Program(number, server, signature)

    @property
    def rows(self) -> int:
        """How many rows the JVM has evaluated; a row counts for each program."""
        return sum(program.rows for program in self._prepared.values())

    @property
    def seconds(self) -> float:
        """The total time that threads have waited for the JVM."""
        return sum(program.seconds for program in self._prepared.values())


def _name(number: int) -> Options:
    return (("program", number),)


class _Program:
    def __init__(self, number: int, server: Callable[[], ExpressionServer], signature: Signature) -> None:
        """`server` is asked once, when the program is first used."""
        self.number = number
        self._find_server = server
        self._server: ExpressionServer | None = None
        self._signature = signature
        self._lock = threading.Lock()
        self.rows = 0
        self.seconds = 0.0

    def evaluate(self, columns: Sequence[pa.Array]) -> pa.Array:
        return self._signature.evaluate(columns, self._ask)

    def _ask(self, batch: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
        started = time.perf_counter()
        found = self._connect().evaluate(self.number, batch, result)
        with self._lock:
            self.rows += self._signature.count_rows(batch)
            self.seconds += time.perf_counter() - started
        return found

    def _connect(self) -> ExpressionServer:
        with self._lock:
            if self._server is None:
                self._server = self._find_server()
            return self._server


_programs: weakref.WeakValueDictionary[int, _Program] = weakref.WeakValueDictionary()


def evaluate(number: int, columns: Sequence[Any]) -> pa.Array:
    """The result of a program for these columns, at least one. LookupError when its query has ended.

    EvaluationError for what Spark's code raised, ArrowInvalid for text that is not UTF-8.
    """
    program = _programs.get(number)
    if program is None:
        raise LookupError(f"the query of program {number} has ended")
    return program.evaluate(columns)
