# SPDX-License-Identifier: Apache-2.0
"""Reads a whole physical plan in one JVM call, with `PlanReader.java`, compiled by Spark's own Janino.

Spark compiles its generated code in the same way, so there is nothing to install and nothing to build per version of
Spark and Scala. If compilation fails, no plan is captured and Spark runs every query.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import weakref
import zlib
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from volley.errors import CaptureError
from volley.plan.jvm import Java
from volley.spark_versions.java import java_source

# Later passes recurse into expressions and visit a shared part once per occurrence.
MOST_PARTS = 200_000
DEEPEST = 200

# Compilation takes one to two seconds in a fresh JVM, and a tenth of that in a warm one.
_COMPILE_SECONDS = 120.0

_PUBLIC_CLASS = re.compile(r"^public final class (\w+)", re.MULTILINE)

_lock = threading.Lock()
READERS: weakref.WeakKeyDictionary[Any, Future[Reader]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Wanted:
    """What a reader reads: every field of `operators`, `settings` with every file scan, and `python_settings` with
    every operator of `python`."""

    operators: tuple[str, ...]
    settings: tuple[str, ...]
    python: tuple[str, ...] = ()
    python_settings: tuple[str, ...] = ()


def reader_of(gateway: Java, wanted: Wanted) -> Future[Reader]:
    """The reader of this JVM. The first call starts a thread that compiles it."""
    with _lock:
        if gateway not in READERS:
            made: Future[Reader] = Future()
            READERS[gateway] = made
            # A daemon: a process that exits early need not wait for the compiler.
            threading.Thread(
                target=compile_reader,
                args=(made, gateway, source(), wanted),
                name="volley-plan-reader",
                daemon=True,
            ).start()
        return READERS[gateway]


def wait_for_reader(reader: Future[Reader]) -> Reader:
    """Wait for the reader. Raises CaptureError if there is none.

    A failed compilation is not retried: it would fail again, for every query.
    """
    try:
        return reader.result(_COMPILE_SECONDS)
    except futures.TimeoutError as error:
        raise CaptureError(
            f"the plan reader was not compiled within {_COMPILE_SECONDS:.0f} seconds."
        ) from error


def compile_reader(made: Future[Reader], gateway: Java, source: str, wanted: Wanted) -> None:
    """Compile the source and resolve `made` with the reader or the error."""
    try:
        lists = (wanted.operators, wanted.settings, wanted.python, wanted.python_settings)
        java = instantiate(gateway, source, *map(",".join, lists), MOST_PARTS, DEEPEST)
        made.set_result(Reader(java))
    except BaseException as error:  # any error: somebody waits for the future
        made.set_exception(CaptureError(f"the plan reader could not be compiled: {describe_error(error)}."))


class Reading:
    """A plan as text, with the operators it was read from. `PlanReader.java` documents the layout."""

    def __init__(self, java: Java) -> None:
        self._java = java
        head, self.text = str(java.text()).split("\n", 1)
        self._ids, unread, self.is_observed = json.loads(head)
        """`is_observed`: whether `df.observe` asks for metrics, even where the optimizer has dropped its operator."""
        self.says_all = unread == 0
        """Whether plans with this `text` are equal, but for the ids of their columns."""

    def tables(self) -> Tables:
        """The text, decoded. The ids are Catalyst's own."""
        found: dict[str, list[Any]] = json.loads(self.text)
        _restore_ids(found["entries"], self._ids)
        return Tables(**found)

    def operator(self, number: int) -> Java:
        """The Spark operator with this index among the operator entries."""
        return self._java.operator(number)

    def expressions(self, numbers: Sequence[int]) -> Java:
        """A Java list of the expressions with these indices among the entries."""
        return self._java.expressions(",".join(map(str, numbers)))


@dataclass(frozen=True)
class Tables:
    """What `PlanReader.java` writes of a plan, as JSON values."""

    entries: list[Any]
    types: list[Any]
    scans: list[Any]
    functions: list[Any]


# The place of the id in entries of these classes. Other ids only have to be distinct.
_ID_PLACES = {"AttributeReference": 2, "Alias": 3, "ScalarSubquery": 2, "InSubqueryExec": 3, "Pruning": 3}


def _restore_ids(entries: list[Any], ids: list[int]) -> None:
    for entry in entries:
        if type(entry) is not list:
            continue
        if place := _ID_PLACES.get(entry[0]):
            entry[place] = ids[entry[place]]
            if type(entry[3]) is list:
                # The name of a column, with ids in it.
                entry[3] = "".join(part if isinstance(part, str) else str(ids[part]) for part in entry[3])
        elif entry[0] == "AggregateExpression":
            entry[3]["resultId"] = ids[entry[3]["resultId"]]


class Reader:
    """The compiled reader of one JVM."""

    def __init__(self, java: Java) -> None:
        self._java = java
        self._zones: dict[str, bytes | None] = {}

    def read(self, plan: Java, execution: Java | None = None) -> Reading:
        """A physical plan, and the QueryExecution that it is of, if it is of one."""
        try:
            return Reading(self._java.read(plan, execution))
        except Py4JError as error:
            raise CaptureError(f"the plan could not be read: {describe_error(error)}.") from error

    def locations(self, partitions: Java) -> list[str]:
        """The paths of these partitions of a table."""
        found: list[str] = json.loads(self._java.locations(partitions))
        return found

    def labels(self, session: Java, properties: Sequence[str]) -> tuple[list[str | None], list[str]]:
        """The thread's local properties of these names, and the tags of the session."""
        values, tags = json.loads(self._java.labels(session, ",".join(properties)))
        return values, tags

    def zone_offsets(self, zone: str) -> bytes | None:
        """The offsets of a time zone, compressed; None if Java does not know the zone."""
        if zone not in self._zones:
            found = self._java.zoneOffsets(zone)
            self._zones[zone] = None if found is None else zlib.compress(str(found).encode())
        return self._zones[zone]

    def strings(self, sequence: Java) -> list[str]:
        """The strings of a Scala sequence."""
        found: list[str] = json.loads(self._java.strings(sequence))
        return found


def source() -> str:
    return java_source("volley.plan", "PlanReader.java")


def instantiate(gateway: Java, source: str, *arguments: Any) -> Java:
    """Compile the source and create an instance of its class with these arguments."""
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    # py4j caches methods by class name, and several programs may share a JVM: each gets its own class name.
    package = f"volley.reader{secrets.token_hex(8)}"
    compiler.cook(source.replace("package volley;", f"package {package};", 1))
    name = _PUBLIC_CLASS.findall(source)[0]
    constructor = compiler.getClassLoader().loadClass(f"{package}.{name}").getConstructors()[0]
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for index, argument in enumerate(arguments):
        values[index] = argument
    return constructor.newInstance(values)


def describe_error(error: BaseException) -> str:
    """The error in one line; for a JVM exception, its own message."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    text = str(java.getMessage() or java) if java is not None else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(".")
