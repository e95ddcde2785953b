# SPDX-License-Identifier: Apache-2.0
"""What a field of a message may hold, beyond its type. Declared where the message is, checked where it is read.

A message is made by our own code and needs no checking there. What comes from a peer is checked by the codec, field by
field, before anybody sees it: a name that becomes part of a path, or a number that is added to what a budget holds, is
then what its annotation says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Between:
    """A number that is finite, as its limits are."""

    low: float
    high: float


@dataclass(frozen=True)
class Matches:
    """A text that is all of this form."""

    pattern: str


Count = Annotated[int, Between(0, _INT64_MAX)]
"""Of rows, bytes, tasks, or the place in a sequence."""

Positive = Annotated[int, Between(1, _INT64_MAX)]

Checksum = Annotated[int, Between(0, 2**64 - 1)]

Seconds = Annotated[float, Between(0, 10 * 365 * 86400)]

Key = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
"""Becomes part of the names of files and objects."""

Name = Annotated[str, Matches(r"[\x20-\x7e]{0,512}")]
"""Of a process, or its address: printed, looked up, connected to."""
