# SPDX-License-Identifier: Apache-2.0
"""Warnings that point to the user's code instead of ours."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("volley", "pyspark")


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
