# SPDX-License-Identifier: Apache-2.0
"""Recognizes lines of JSON in which nothing is doubtful, all lines of a block at once.

One regular expression describes them: standard JSON with objects and arrays of simple values, no `\\u` escapes, and
numbers that every parser takes for the same value. It costs less than looking for each of the doubtful things alone.
Lines that it does not know may be good: they are then checked one thing after the other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SPACE = "[ \\t]*"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
_SAMPLE_LINES = 16


class PlainLines:
    """Tells whether the lines of a file are plain, block by block, and gives up when some are not.

    `digits`: how many digits a number may have before its point, and `fraction_digits` after it; then it may have no
    exponent. None: any, as no decimals are read.
    """

    def __init__(self, digits: int | None, fraction_digits: int) -> None:
        self._pattern = _line_pattern(digits, fraction_digits)
        self._may_be = digits != 0

    def are_plain(self, block: bytes, starts: np.ndarray) -> bool:
        """Whether all lines of a block of valid UTF-8 are empty or plain. `starts`: where its lines begin."""
        if self._may_be:
            offsets = np.append(starts, len(block)).astype(np.int32)
            self._may_be = self._match(block, offsets[: _SAMPLE_LINES + 1]) and (
                len(offsets) <= _SAMPLE_LINES + 1 or self._match(block, offsets)
            )
        return self._may_be

    def _match(self, block: bytes, offsets: np.ndarray) -> bool:
        lines = pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)]
        )
        return bool(pc.all(pc.match_substring_regex(lines, self._pattern)).as_py())


@lru_cache(maxsize=256)
def _line_pattern(digits: int | None, fraction_digits: int) -> str:
    if digits is None:
        whole, fraction, exponent = "[1-9][0-9]*", r"\.[0-9]+", "(?:[eE][+-]?[0-9]+)?"
    else:
        whole = f"[1-9][0-9]{{0,{max(0, digits - 1)}}}"
        fraction, exponent = rf"\.[0-9]{{1,{fraction_digits}}}", ""
    # Not -0, which is a whole number for Jackson, and has a sign for Arrow.
    number = f"(?:-?{whole}(?:{fraction})?|0(?:{fraction})?|-0{fraction}){exponent}"
    simple = f"(?:{_STRING}|{number}|true|false|null)"
    # Another level would double the time.
    value = f"(?:{simple}|{_list_of(simple, '[]')}|{_object_of(simple)})"
    return rf"\A(?:{_object_of(value)})?\r?\n?\z"


def _object_of(value: str) -> str:
    return _list_of(f"{_STRING}{_SPACE}:{_SPACE}{value}", "{}")


def _list_of(item: str, brackets: str) -> str:
    return rf"\{brackets[0]}{_SPACE}(?:{item}{_SPACE}(?:,{_SPACE}{item}{_SPACE})*)?\{brackets[1]}"
