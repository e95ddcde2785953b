# SPDX-License-Identifier: Apache-2.0
"""Classifies DataFusion errors. In Python they are bare exceptions; only their text distinguishes them.

DataFusion error: Arrow error: Cast error: Cannot cast string 'x' ...      the data
DataFusion error: Resources exhausted: Failed to allocate ...              memory
DataFusion error: IO error: No space left on device (os error 28)          disk
DataFusion error: Execution error: ... [JVM_LOST] ...                      the JVM beside the worker
DataFusion error: Internal error: ...                                      a defect, like everything unknown
"""

from __future__ import annotations

import ast
import re
from enum import Enum

from volley.errors import JvmLost

_WRAPPERS = re.compile(r"^(DataFusion error: |External error: |Arrow error: External error: |External: )+")
_DATA = (
    # Values: overflow, division, casts, digits of decimals, parsing.
    "Arrow error: Arithmetic overflow",
    "Arrow error: Cast error",
    "Arrow error: Compute error",
    "Arrow error: Divide by zero",
    "Arrow error: Invalid argument error",
    "Arrow error: Parser error",
    "Execution error",
    "regex parse error",
    # Raised by the readers of files that Volley parses itself.
    "DataError: [DATA_ERROR]",
    # Files that are missing, damaged, or changed since planning.
    "Arrow error: Io error",
    "Arrow error: Parquet",
    "IO error",
    "Object Store error",
    "Parquet error",
)
# Arrow's message for a batch that does not match its schema, which data cannot cause.
_DEFECTS = ("column types must match schema types", "number of columns", "number of fields")
_DISK_FULL = ("(os error 28)", "(os error 122)")
# The error of a function that the engine calls is only text by now.
_JVM_LOST = f"[{JvmLost.code}]"


_PYTHON_ERROR = re.compile(r"PyErr \{ type: <class '[^']*'>, value: (\w+)\((.*?)\), traceback: .*", re.DOTALL)


def plain_message(error: BaseException) -> str:
    """What a person needs of an engine error: without the names of wrappers and the traceback of a Python function."""
    text = str(error)
    if type(error) is not Exception:
        return text
    cause = _WRAPPERS.sub("", text.rpartition("caused by\n")[2])
    if match := _PYTHON_ERROR.search(cause):
        return _unquote(match[2])
    return cause


def _unquote(value: str) -> str:
    """The first line of a text that is written as Python writes it, with quotes and escapes."""
    try:
        text = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value.strip("'\"")
    return str(text).partition("\n")[0]


class Fault(Enum):
    """The cause of an engine error."""

    DATA = "data"
    MEMORY = "memory"
    DISK = "disk"
    JVM = "jvm"
    DEFECT = "defect"


def fault_of(error: BaseException) -> Fault | None:
    """The cause of an error that DataFusion raised; None for other errors."""
    # DataFusion raises plain Exception; panics of its threads have a class that cannot be imported.
    if type(error).__name__ == "PanicException":
        return Fault.DEFECT
    if type(error) is not Exception:
        return None
    text = str(error)
    if "Resources exhausted" in text:
        return Fault.MEMORY
    if any(words in text for words in _DISK_FULL):
        return Fault.DISK
    if _JVM_LOST in text:
        return Fault.JVM
    # The context precedes the cause.
    cause = _WRAPPERS.sub("", text.rpartition("caused by\n")[2])
    if any(words in cause for words in _DEFECTS):
        return Fault.DEFECT
    return Fault.DATA if cause.startswith(_DATA) else Fault.DEFECT
