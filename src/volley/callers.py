# SPDX-License-Identifier: Apache-2.0
"""Warnings that point at the user's line, not at ours."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("volley", "pyspark")


def warn_caller(message: str) -> None:
    """Warn as if the first caller outside Volley and PySpark had done it.

    Python's default filter shows a text once for each place, so each place in a program that falls back is told once.
    """
    # 1 is this function, for `warnings` as for us.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_library(str(frame.f_globals.get("__name__", ""))):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
