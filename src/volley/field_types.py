# SPDX-License-Identifier: Apache-2.0
"""Constraints on the fields of messages, declared as annotations and checked by the codec.

Messages that our own code creates are not checked. Messages from a peer are checked field by field before any code sees
them, so a name can safely become part of a path, and a number can safely be added to a budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

_INT64_MAX = 2**63 - 1

NOT_SENT = "not sent"
"""In the metadata of a field: it holds objects of this process, and a peer gets its default instead."""


@dataclass(frozen=True)
class Between:
    """A finite number within these limits."""

    low: float
    high: float


@dataclass(frozen=True)
class Matches:
    """A text that matches the pattern as a whole."""

    pattern: str


@dataclass(frozen=True)
class AtMost:
    """A text or a tuple of at most this length."""

    length: int


Count = Annotated[int, Between(0, _INT64_MAX)]
"""A number of rows, bytes or tasks, or a position in a sequence."""

Positive = Annotated[int, Between(1, _INT64_MAX)]

MessageBytes = Annotated[int, Between(0, 2**31)]
"""The size of what fits into one message."""

Checksum = Annotated[int, Between(0, 2**64 - 1)]

PartitionCount = Annotated[int, Between(1, 2**20)]
"""How many partitions an attempt writes. A sink has a list for each."""

Wait = Annotated[float, Between(0, 60)]
"""Seconds for which a call may occupy a thread of the peer."""

Seconds = Annotated[float, Between(0, 10 * 365 * 86400)]

Key = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
"""A name that may become part of a file or object name."""

Secret = Annotated[str, Matches(r"[0-9a-f]{0,64}")]
"""A random key that proves a right. Never part of a text for people."""

Text = Annotated[str, AtMost(8192)]
"""A text of this process that means nothing to others, or a sentence."""

Name = Annotated[str, Matches(r"[\x20-\x7e]{0,512}")]
"""The name or address of a process."""
