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
