# SPDX-License-Identifier: Apache-2.0
"""Spark's plans of queries that are asked again, which Spark then need not make again (`KnownPlans.java`)."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError

from volley.plan.compiled_class import CompiledClass
from volley.plan.jvm import Java

_lock = threading.Lock()
_classes: weakref.WeakKeyDictionary[Any, CompiledClass] = weakref.WeakKeyDictionary()


def find_plan(gateway: Java, execution: Java) -> Java | None:
    """The physical plan of a query that was kept and is still the same; None if it has to be made."""
    known = _known(gateway)
    try:
        return None if known is None else known.find(execution)
    except Py4JError:
        # Spark says what is wrong when it makes the plan.
        return None


def keep_plan(gateway: Java, execution: Java) -> None:
    """Remember a query that runs natively and whose plan, as text, says all about it."""
    known = _known(gateway)
    # Without it Spark plans the query again.
    with suppress(Py4JError):
        if known is not None:
            known.keep(execution)


def _known(gateway: Java) -> Java | None:
    """None until it is compiled, which the first call begins."""
    with _lock:
        if gateway not in _classes:
            _classes[gateway] = CompiledClass(gateway, "KnownPlans.java")
        return _classes[gateway].get_now()
