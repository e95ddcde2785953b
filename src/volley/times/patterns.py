# SPDX-License-Identifier: Apache-2.0
"""Patterns of dates and times, such as `yyyy-MM-dd HH:mm`, as fields and the texts between them."""

from __future__ import annotations

import re
from functools import lru_cache

# A field, a quoted text, or characters that mean themselves. Spark gives brackets, braces and # a meaning.
_PART = re.compile(r"(?P<field>([A-Za-z])\2*)|'(?P<quoted>[^']+)'|(?P<plain>[-/:., _]+)")

FORMATTED = frozenset(
    {"yyyy", "yy", "MM", "M", "dd", "d", "HH", "H", "hh", "h", "mm", "m", "ss", "s", "a", "MMM", "E", "EEE"}
    | {"S" * digits for digits in range(1, 7)}
)
"""Fields whose text is known for the years from 1 to 9999."""
PARSED = frozenset({"yyyy", "MM", "dd", "HH", "mm", "ss", "MMM"} | {"S" * digits for digits in range(1, 7)})
"""Fields of a fixed width, whose text has one meaning if it has that width."""

Part = tuple[str, bool]
"""A field, or a text if the second is false."""


@lru_cache(maxsize=256)
def read_pattern(pattern: str, fields: frozenset[str]) -> tuple[Part, ...] | None:
    """The parts of the pattern; None if it has others than these fields and plain texts."""
    parts: list[Part] = []
    at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            return None
        at = found.end()
        if (name := found["field"]) is not None:
            if name not in fields:
                return None
            parts.append((name, True))
        else:
            parts.append((found["quoted"] or found["plain"], False))
    return tuple(parts) if all(text.isascii() for text, _ in parts) else None


def parsed_pattern(pattern: str) -> tuple[Part, ...] | None:
    """The parts of a pattern that says a day or a month, and maybe a time; None for others."""
    parts = read_pattern(pattern, PARSED)
    if parts is None:
        return None
    if _runs_on(parts):
        return None
    names = [name[0] if name != "MMM" else "M" for name, is_field in parts if is_field]
    # Each part of a time needs what is larger.
    wanted = "yMdHmsS"
    if len(set(names)) < len(names) or not {"y", "M"} <= set(names) or len(names) > len(wanted):
        return None
    return parts if set(names) == set(wanted[: len(names)]) else None


def _runs_on(parts: tuple[Part, ...]) -> bool:
    """Whether a year is followed by a fraction without a text between them.

    Java takes all digits there for the year, except those of the whole numbers that follow it.
    """
    open_year = False
    for name, is_field in parts:
        if open_year and name[0] == "S" and is_field:
            return True
        open_year = is_field and name != "MMM" and (open_year or name == "yyyy")
    return False
