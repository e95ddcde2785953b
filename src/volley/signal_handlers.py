# SPDX-License-Identifier: Apache-2.0
"""Tells errors that a program's own signal handler raises from other errors.

A handler that raises, say after a time limit, ends whatever the main thread is doing. Its error can come out of any
line of Volley, and is none of Volley's defects.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from types import CodeType


def find_interruption(error: BaseException | None) -> BaseException | None:
    """The error that a signal handler raised: `error`, or what caused it. None if none did."""
    handlers = set(_handlers())
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return error
            trace = trace.tb_next
        error = error.__cause__
    return None


def _handlers() -> Iterator[CodeType]:
    """The code of the handlers that are written in Python."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for method in (handler, getattr(handler, "__call__", None)):  # noqa: B004
            code = getattr(method, "__code__", None)
            if isinstance(code, CodeType):
                yield code
