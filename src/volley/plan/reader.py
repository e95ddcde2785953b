"""Reads a whole physical plan in one call, by `PlanReader.java`, which Spark's own compiler makes a class of.

Spark compiles the code that it generates for queries in the same way, so there is nothing to install and nothing to
build for each version of Spark and Scala. Where it cannot be compiled, plans are not read, and Spark runs the queries.
"""

from __future__ import annotations

import json
import threading
import weakref
from importlib.resources import files
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from volley.errors import CaptureError
from volley.plan.jvm import Java, answer_promptly

# What the rest of a query does with an expression, it does by recursion and once for each place where a part stands.
MOST_PARTS = 200_000
DEEPEST = 200

_CLASS = "volley.PlanReader"

_lock = threading.Lock()
_readers: weakref.WeakKeyDictionary[Any, Reader] = weakref.WeakKeyDictionary()


def reader_of(gateway: Java, operators: tuple[str, ...], settings: tuple[str, ...]) -> Reader:
    """The reader of this JVM, compiled when it is first asked for. Raises CaptureError where that fails.

    It reads every field of `operators`, and `settings` with every scan of files.
    """
    with _lock:
        if gateway not in _readers:
            _readers[gateway] = Reader(gateway, operators, settings)
        return _readers[gateway]


class Reading:
    """A plan as plain JSON values, with the operators that it was read from; `PlanReader.java` says how it looks."""

    def __init__(self, java: Java) -> None:
        self._java = java
        found: dict[str, list[Any]] = json.loads(java.text())
        self.entries = found["entries"]
        self.types = found["types"]
        self.scans = found["scans"]

    def operator(self, number: int) -> Java:
        """The operator of Spark whose entry is the `number`th among those of operators."""
        return self._java.operator(number)


class Reader:
    """The compiled reader of one JVM."""

    def __init__(self, gateway: Java, operators: tuple[str, ...], settings: tuple[str, ...]) -> None:
        self._gateway = gateway
        try:
            self._java = _compiled(gateway, ",".join(operators), ",".join(settings), MOST_PARTS, DEEPEST)
        except Py4JError as error:
            raise CaptureError(f"the reader of plans could not be compiled: {_words(error)}.") from error

    def read(self, plan: Java) -> Reading:
        answer_promptly(self._gateway)
        try:
            return Reading(self._java.read(plan))
        except Py4JJavaError as error:
            raise CaptureError(f"the plan could not be read: {_words(error)}.") from error

    def locations(self, partitions: Java) -> list[str]:
        """Where these partitions of a table lie."""
        found: list[str] = json.loads(self._java.locations(partitions))
        return found

    def strings(self, sequence: Java) -> list[str]:
        """The strings of a Scala sequence."""
        found: list[str] = json.loads(self._java.strings(sequence))
        return found


def _compiled(gateway: Java, *arguments: Any) -> Java:
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook((files("volley.plan") / "PlanReader.java").read_text("utf-8"))
    constructor = compiler.getClassLoader().loadClass(_CLASS).getConstructors()[0]
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for index, argument in enumerate(arguments):
        values[index] = argument
    return constructor.newInstance(values)


def _words(error: Py4JError) -> str:
    """What the JVM says, in one line."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getMessage() or error.java_exception).splitlines()[0].rstrip(".")
    return str(error).splitlines()[0].rstrip(".")
