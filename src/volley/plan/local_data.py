# SPDX-License-Identifier: Apache-2.0
"""Rows that a program gave to `createDataFrame`: an RDD in Spark's plan, local rows in ours.

    createDataFrame(rows)   Spark pickles the rows to the driver's JVM and makes an RDD of them; `remember` marks it
    capture                 `read_rows` reads a marked RDD on the driver, without a job (`LocalData.java`), once

Marks are kept in the JVM, in a map with weak keys: they end with the RDD, and no RDD of another SparkContext is taken
for it. An RDD that the program made itself has no mark, since only Spark can run its functions.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError

from volley.errors import CaptureError
from volley.plan.compiled_class import CompiledClass
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.local_rows import holds_unexpected_nulls, to_ipc
from volley.plan.nodes import LocalRows, Node, OneRow
from volley.plan.reader import describe_error
from volley.plan.types import is_readable

# More than this crosses between the JVM and Python more slowly than Spark's tasks would read it.
MAX_ROWS_BYTES = 64 << 20
MAX_CACHED_BYTES = 128 << 20

_ENTRY_BYTES = 200


@dataclass
class _Jvm:
    """What one JVM has for local data: the marks of RDDs, and the compiled reader."""

    marks: Java
    reader: CompiledClass


_lock = threading.Lock()
_jvms: weakref.WeakKeyDictionary[Any, _Jvm] = weakref.WeakKeyDictionary()
_marks = itertools.count(1)


class _Rows(NamedTuple):
    ipc: bytes
    partition_rows: tuple[int, ...]


class _Cache:
    """Rows that were read, or why they were not, by mark; what was not used for longest is dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[int, _Rows | str] = OrderedDict()

    def get(self, mark: int) -> _Rows | str | None:
        with self._lock:
            if mark not in self._found:
                return None
            self._found.move_to_end(mark)
            return self._found[mark]

    def add(self, mark: int, found: _Rows | str) -> None:
        with self._lock:
            if mark in self._found:
                return
            self._found[mark] = found
            self._bytes += _size_bytes(found)
            while self._bytes > self._max_bytes:
                _, dropped = self._found.popitem(last=False)
                self._bytes -= _size_bytes(dropped)


def _size_bytes(found: _Rows | str) -> int:
    return _ENTRY_BYTES + len(found if isinstance(found, str) else found.ipc)


_cache = _Cache(MAX_CACHED_BYTES)


def remember(gateway: Java, frame: Java) -> None:
    """Mark the RDD of a frame that `createDataFrame` has just made of local data. Spark reads what has no mark."""
    with suppress(Py4JError):
        plan = frame.queryExecution().analyzed()
        if str(plan.getClass().getSimpleName()) == "LogicalRDD":
            _jvm(gateway).marks.put(plan.rdd(), next(_marks))


_ONE_ROW = "OneRowRelation"


def read_rows(operator: Operator, gateway: Java, scan: Java) -> Node:
    """A scan of an RDD: local rows if they were given to `createDataFrame`."""
    with _lock:
        jvm = _jvms.get(gateway)
    mark = jvm.marks.get(scan.rdd()) if jvm else None
    if jvm is None or mark is None:
        # Spark 4.0 has no operator of its own for a query without FROM.
        is_one_row = str(scan.name()) == _ONE_ROW
        return OneRow() if is_one_row else unknown(operator, "The rows come from an RDD.")
    output: tuple[Attribute, ...] = operator.all("output")
    if not all(is_readable(attribute.type) for attribute in output):
        return unknown(operator, "rows of a type that Volley does not carry")
    found = _cache.get(mark)
    if found is None:
        found = _read(jvm.reader, scan, output)
        _cache.add(mark, found)
    return unknown(operator, found) if isinstance(found, str) else LocalRows(output, *found)


def _read(reader: CompiledClass, scan: Java, output: tuple[Attribute, ...]) -> _Rows | str:
    """The rows, or why Spark has to read them."""
    try:
        rows = reader.get().read(scan)
        stream, counts = (None, "") if rows is None else (rows.stream(), str(rows.counts()))
    except (CaptureError, Py4JError) as error:
        # Such as a value that does not fit its type: when Spark reads it, the program sees Spark's own error.
        return f"local data that could not be read: {describe_error(error)}"
    if stream is None:
        return f"local data of more than {MAX_ROWS_BYTES >> 20} MiB"
    batches = list(pa.ipc.open_stream(bytes(stream)))
    if any(
        holds_unexpected_nulls(column, attribute.type, attribute.nullable)
        for batch in batches
        for column, attribute in zip(batch.columns, output, strict=True)
    ):
        # verifySchema=False lets them pass. What Spark makes of them depends on how it runs the query.
        return "local data with NULL in a column that has none by its schema"
    partition_rows = tuple(map(int, counts.split(","))) if counts else ()
    return _Rows(to_ipc(batches, output), partition_rows)


def _jvm(gateway: Java) -> _Jvm:
    """The first local data of a JVM starts the compiler, so that its first query need not wait long."""
    with _lock:
        if gateway not in _jvms:
            util = gateway.jvm.java.util
            reader = CompiledClass(gateway, "LocalData.java", MAX_ROWS_BYTES)
            _jvms[gateway] = _Jvm(util.Collections.synchronizedMap(util.WeakHashMap()), reader)
        return _jvms[gateway]
