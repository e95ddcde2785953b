# SPDX-License-Identifier: Apache-2.0
"""Lets the methods of a Connect client that stop operations stop those that run natively in this process, too.

The server knows nothing of them. Each runs under a job tag of its own, which stops its native query and Spark's jobs.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from pyspark import SparkContext

from volley.errors import QueryCancelled
from volley.query.interrupts import JobTag, stop_jobs


class Operation:
    """A request of a client while it is answered. `id` and `tags` are the client's."""

    def __init__(self, context: SparkContext, request: Any) -> None:
        self.id: str = request.operation_id or str(uuid.uuid4())
        self.tags = frozenset(request.tags)
        self._context = context
        self._interrupted = False

    @property
    def job_tag(self) -> str:
        return f"volley-connect-{self.id}"

    def interrupt(self) -> None:
        self._interrupted = True
        stop_jobs(self._context, self.job_tag)

    def check(self) -> None:
        """Raise QueryCancelled if somebody has interrupted it before there was anything to stop."""
        if self._interrupted:
            raise QueryCancelled("the operation was interrupted.")


_lock = threading.Lock()
_running: weakref.WeakKeyDictionary[Any, set[Operation]] = weakref.WeakKeyDictionary()


@contextmanager
def interruptible(client: Any, context: SparkContext, request: Any) -> Iterator[Operation]:
    """What this thread runs in the block is stopped by the methods of the client."""
    operation = Operation(context, request)
    with _lock:
        _running.setdefault(client, set()).add(operation)
    try:
        with JobTag(context, operation.job_tag):
            yield operation
    finally:
        with _lock:
            _running[client].discard(operation)


def install(client_class: Any) -> None:
    """Wrap the methods. Call it once."""
    _wrap(client_class, "interrupt_all", lambda operation: True)
    _wrap(client_class, "interrupt_tag", lambda operation, tag: tag in operation.tags)
    _wrap(client_class, "interrupt_operation", lambda operation, op_id: op_id == operation.id)


def _wrap(client_class: Any, method: str, applies: Callable[..., bool]) -> None:
    original = getattr(client_class, method)

    @wraps(original)
    def interrupt(client: Any, *arguments: Any, **named: Any) -> list[str]:
        with _lock:
            running = list(_running.get(client, ()))
        stopped = [operation for operation in running if applies(operation, *arguments, *named.values())]
        for operation in stopped:
            operation.interrupt()
        of_server = original(client, *arguments, **named) or []
        return list(dict.fromkeys([*of_server, *(operation.id for operation in stopped)]))

    setattr(client_class, method, interrupt)
