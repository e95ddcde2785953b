# SPDX-License-Identifier: Apache-2.0
"""Makes a failing case smaller, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

Case = TypeVar("Case")


def shrink(
    case: Case, simplify: Callable[[Case], Iterator[Case]], fails: Callable[[Case], bool], tries: int
) -> Case:
    """A simpler case that still fails, after at most so many tries. `simplify` yields those that remove most first."""
    best, left = case, tries
    while left > 0:
        for candidate in simplify(best):
            left -= 1
            if fails(candidate):
                best = candidate
                break
            if left <= 0:
                break
        else:
            return best
    return best
