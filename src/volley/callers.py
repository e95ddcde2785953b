# SPDX-License-Identifier: Apache-2.0
"""Finding the user's code among ours: for warnings that point to it, and for the history."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("volley", "pyspark")


def caller() -> str:
    """The place in the user's code that called Volley: the name of its file and the line."""
    frame = sys._getframe()
    while frame.f_back is not None and _is_library(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def warn_caller(message: str) -> None:
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
