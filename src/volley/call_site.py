# SPDX-License-Identifier: Apache-2.0
"""The call site of an action: the line of the user's program that warnings and the history point to."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("volley", "pyspark")


def find_call_site() -> str:
    """The file name and line of the user's code that called Volley."""
    frame = sys._getframe()
    while frame.f_back is not None and _is_library(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def warn_at_call_site(message: str) -> None:
    """Issue a warning at the first caller outside Volley and PySpark.

    Python's default filter shows a warning once per location, so each place in a program that falls back gets one.
    """
    # As in `warnings`, level 1 is this function.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_library(str(frame.f_globals.get("__name__", ""))):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
