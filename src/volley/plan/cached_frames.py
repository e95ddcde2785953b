# SPDX-License-Identifier: Apache-2.0
"""Scans of cached frames: which frame of Spark's cache manager a scan reads, and whether Spark still has it.

Spark's cache manager stays the authority on what is cached. The rows that Volley keeps of a frame are known by the
number that `CachedFrames.java` gives it: a frame that is cached again, or whose tables have changed, has a new number.
"""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

from volley.errors import CaptureError
from volley.plan.compiled_class import CompiledClass
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute, SortKey
from volley.plan.jvm import Java
from volley.plan.nodes import CachedRows, Node
from volley.plan.reader import describe_error
from volley.plan.types import is_carried


@dataclass(frozen=True)
class ScannedFrame:
    """What Spark says about the frame that a scan reads.

    `columns` are the positions of the scan's columns in the frame. `order` is the order that plans may rely on: the
    position in the frame, ascending and NULLs first for each key; None if it is not one of columns. `registered`: the
    cache manager has it. `memory` and `disk` are its storage level. `spark_bytes` is what Spark has stored of it; None
    unless it has stored all of it. `estimated_bytes` is Spark's estimate, if it has not.
    """

    name: str
    columns: tuple[int, ...]
    order: tuple[tuple[int, bool, bool], ...] | None
    registered: bool
    memory: bool
    disk: bool
    spark_bytes: int | None
    estimated_bytes: int


@dataclass(frozen=True)
class _Jvm:
    """What one JVM has for cached frames. The prefix tells its numbers from those of another JVM of this process."""

    prefix: str
    reader: CompiledClass


_lock = threading.Lock()
_jvms: weakref.WeakKeyDictionary[Any, _Jvm] = weakref.WeakKeyDictionary()
_prefixes = itertools.count(1)


def read_cached(operator: Operator, gateway: Java, scan: Java) -> Node:
    """A scan of a cached frame."""
    output: tuple[Attribute, ...] = operator.all("output")
    if not all(is_carried(attribute.type) for attribute in output):
        return unknown(operator, "a cached frame with a type that Volley does not carry")
    try:
        frame = describe_frame(gateway, scan)
    except CaptureError as error:
        return unknown(operator, error.message)
    return CachedRows(output, frame.name, frame.columns, _sort_keys(frame, output), frame.order is None)


def _sort_keys(frame: ScannedFrame, output: tuple[Attribute, ...]) -> tuple[SortKey, ...]:
    """The order of the scan: without a column that it does not read, nothing is known about the keys after it."""
    columns = dict(zip(frame.columns, output, strict=True))
    known = itertools.takewhile(lambda key: key[0] in columns, frame.order or ())
    return tuple(SortKey(columns[position], *direction) for position, *direction in known)


def describe_frame(gateway: Java, scan: Java) -> ScannedFrame:
    """The frame that a scan of Spark's plan reads. Raises CaptureError if that cannot be found out."""
    jvm = _jvm(gateway)
    try:
        number, columns, order, registered, memory, disk, loaded, size_bytes = json.loads(
            jvm.reader.get().describe(scan)
        )
    except Py4JError as error:
        raise CaptureError(f"the cached frame could not be read: {describe_error(error)}.") from error
    return ScannedFrame(
        name=f"{jvm.prefix}-{number}",
        columns=tuple(columns),
        order=None if order is None else tuple(map(tuple, order)),
        registered=registered,
        memory=memory,
        disk=disk,
        spark_bytes=size_bytes if loaded else None,
        estimated_bytes=size_bytes,
    )


def registered_frames(gateway: Java, session: Java) -> set[str]:
    """The names of the frames that are cached now, of those that scans were ever read of."""
    jvm = _jvm(gateway)
    try:
        found = json.loads(jvm.reader.get().registeredFrames(session))
    except Py4JError as error:
        raise CaptureError(f"Spark's cache could not be read: {describe_error(error)}.") from error
    return {f"{jvm.prefix}-{number}" for number in found}


def _jvm(gateway: Java) -> _Jvm:
    """The first cached frame of a JVM starts the compiler."""
    with _lock:
        if gateway not in _jvms:
            _jvms[gateway] = _Jvm(str(next(_prefixes)), CompiledClass(gateway, "CachedFrames.java"))
        return _jvms[gateway]
