# SPDX-License-Identifier: Apache-2.0
"""Which LIKE and regular-expression patterns mean the same in Java and in Rust."""

from __future__ import annotations

import re

_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)

# A deliberate subset: no look-around, back-references, lazy or possessive quantifiers, counted repeats, flags or
# Unicode classes; `^` only at the start and `$` only at the end, where both languages agree.
_ATOM = r"(?:[A-Za-z0-9 _,:;@#%=<>~!'\"/-]|\.|\\[dDwWsS.\[\](){}*+?^$|\\/-]|\[\^?(?:[A-Za-z0-9_ ](?:-[A-Za-z0-9])?)+\])"
_SEQUENCE = rf"(?:{_ATOM}[*+?]?)+"
_GROUP = rf"(?:\({_SEQUENCE}(?:\|{_SEQUENCE})*\)[*+?]?|{_ATOM}[*+?]?)+"
_PORTABLE = re.compile(rf"\^?{_GROUP}(?:\|{_GROUP})*\$?")
_RANGE = re.compile(r"([A-Za-z0-9])-([A-Za-z0-9])")


def is_portable_like(pattern: str, escape: str) -> bool:
    """Whether the pattern is valid. Spark rejects an escape at the end or before an ordinary character; DataFusion
    takes it literally.
    """
    return escape == "\\" and all(after in ("%", "_", "\\") for after in _ESCAPED.findall(pattern) or ["%"])


def is_portable_regex(pattern: str) -> bool:
    if len(pattern) > 200 or not _PORTABLE.fullmatch(pattern):
        return False
    return all(low <= high for low, high in _RANGE.findall(pattern))


def translation(matching: str, replacing: str) -> dict[str, str]:
    """What `translate` puts in place of each character: nothing where `replacing` is shorter. The first one counts."""
    pairs: dict[str, str] = {}
    for place, letter in enumerate(matching):
        pairs.setdefault(letter, replacing[place : place + 1])
    return pairs


def overlaps_itself(text: str) -> bool:
    """Whether two places where the text is found can overlap, as in `aa` or `aba`."""
    return any(text.startswith(text[start:]) for start in range(1, len(text)))


_DAYS = ("THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY")


def day_of_week(name: str) -> int | None:
    """The number by which Spark knows a day, from 0 for Thursday; None for a name that it does not know."""
    upper = name.upper()
    found = (number for number, day in enumerate(_DAYS) if upper in (day, day[:3], day[:2]))
    return next(found, None)
