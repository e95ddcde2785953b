# SPDX-License-Identifier: Apache-2.0
"""Asks Spark how it would partition the rows of an operator, without running anything."""

from __future__ import annotations

import json
import threading
import weakref
from typing import Any

from py4j.protocol import Py4JError

from volley.errors import CaptureError
from volley.plan.compiled_class import CompiledClass
from volley.plan.jvm import Java
from volley.plan.spark_partitions import (
    Concatenated,
    DriverRows,
    Files,
    Grouped,
    Layout,
    Slices,
    Together,
    Unclear,
)

_lock = threading.Lock()
_classes: weakref.WeakKeyDictionary[Java, CompiledClass] = weakref.WeakKeyDictionary()


def read_layout(gateway: Java, operator: Java) -> Layout:
    """The partitions of a physical operator."""
    with _lock:
        if gateway not in _classes:
            _classes[gateway] = CompiledClass(gateway, "SparkPartitions.java")
        reader = _classes[gateway]
    try:
        return _layout(json.loads(reader.get().describe(operator)))
    except (CaptureError, Py4JError):
        # Spark will say what is wrong with it, such as files that are gone.
        return Unclear(str(operator.nodeName()))


def _layout(text: list[Any]) -> Layout:
    match text:
        case ["slices", int(count)]:
            return Slices(count)
        case ["rdd"]:
            return DriverRows()
        case ["files", list(partitions)]:
            return Files(tuple(tuple(tuple(part) for part in partition) for partition in partitions))
        case ["union", list(inputs)]:
            return Concatenated(tuple(map(_layout, inputs)))
        case ["together"]:
            return Together()
        case ["coalesce", int(count), list(below)]:
            return Grouped(count, _layout(below))
        case _:
            return Unclear(str(text[-1]))
