# SPDX-License-Identifier: Apache-2.0
"""Reads a whole physical plan in one call, by `PlanReader.java`, which Spark's own compiler makes a class of.

Spark compiles the code that it generates for queries in the same way, so there is nothing to install and nothing to
build for each version of Spark and Scala. Where it cannot be compiled, plans are not read, and Spark runs the queries.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import weakref
from concurrent.futures import Future
from importlib.resources import files
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from volley.errors import CaptureError
from volley.plan.jvm import Java

# What the rest of a query does with an expression, it does by recursion and once for each place where a part stands.
MOST_PARTS = 200_000
DEEPEST = 200

# It takes one or two seconds in a JVM that has just started, and a tenth of that in one that has run for a while.
_COMPILE_SECONDS = 120.0

_PUBLIC_CLASS = re.compile(r"^public final class (\w+)", re.MULTILINE)

_lock = threading.Lock()
READERS: weakref.WeakKeyDictionary[Any, Future[Reader]] = weakref.WeakKeyDictionary()


def reader_of(gateway: Java, operators: tuple[str, ...], settings: tuple[str, ...]) -> Future[Reader]:
    """The reader of this JVM, which a thread of its own compiles when it is first asked for.

    It reads every field of `operators`, and `settings` with every scan of files.
    """
    with _lock:
        if gateway not in READERS:
            made: Future[Reader] = Future()
            READERS[gateway] = made
            # It ends when the compiler does, or with the JVM; a process that ends earlier need not wait for it.
            threading.Thread(
                target=make,
                args=(made, gateway, source(), operators, settings),
                name="volley-plan-reader",
                daemon=True,
            ).start()
        return READERS[gateway]


def finished(reader: Future[Reader]) -> Reader:
    """Wait for a reader; CaptureError where there is none.

    What failed once is not tried again: it would fail in the same way, for every query.
    """
    try:
        return reader.result(_COMPILE_SECONDS)
    except TimeoutError as error:
        raise CaptureError(
            f"the reader of plans was not compiled within {_COMPILE_SECONDS:.0f} seconds."
        ) from error


def make(
    made: Future[Reader], gateway: Java, source: str, operators: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    """Compile a source, and let `made` know how that went."""
    try:
        java = compiled(gateway, source, ",".join(operators), ",".join(settings), MOST_PARTS, DEEPEST)
        made.set_result(Reader(java))
    except BaseException as error:  # whatever it is, somebody waits for it
        made.set_exception(CaptureError(f"the reader of plans could not be compiled: {error_text(error)}."))


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

    def __init__(self, java: Java) -> None:
        self._java = java

    def read(self, plan: Java) -> Reading:
        try:
            return Reading(self._java.read(plan))
        except Py4JError as error:
            raise CaptureError(f"the plan could not be read: {error_text(error)}.") from error

    def locations(self, partitions: Java) -> list[str]:
        """Where these partitions of a table lie."""
        found: list[str] = json.loads(self._java.locations(partitions))
        return found

    def strings(self, sequence: Java) -> list[str]:
        """The strings of a Scala sequence."""
        found: list[str] = json.loads(self._java.strings(sequence))
        return found


def source() -> str:
    return (files("volley.plan") / "PlanReader.java").read_text("utf-8")


def compiled(gateway: Java, source: str, *arguments: Any) -> Java:
    """An instance of the public class of a source, made with these arguments."""
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    # py4j knows methods by the name of their class, and several programs may share a JVM: each has a class of its own.
    package = f"volley.reader{secrets.token_hex(8)}"
    compiler.cook(source.replace("package volley;", f"package {package};", 1))
    name = _PUBLIC_CLASS.findall(source)[0]
    constructor = compiler.getClassLoader().loadClass(f"{package}.{name}").getConstructors()[0]
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for index, argument in enumerate(arguments):
        values[index] = argument
    return constructor.newInstance(values)


def error_text(error: BaseException) -> str:
    """What went wrong, in one line; of an exception in the JVM, its own message."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    text = str(java.getMessage() or java) if java is not None else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(".")
