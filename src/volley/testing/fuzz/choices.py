# SPDX-License-Identifier: Apache-2.0
"""The choices behind a random case, recorded, so that a failing case can be shrunk by changing its choices.

Generators list the simplest alternative first: a smaller number is always a simpler case. A replay whose numbers run
out continues with zeros, hence deleting numbers shortens a case and never invalidates it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from volley.testing import shrinking

T = TypeVar("T")


class Choices:
    """Draws numbers from a seed, or replays recorded ones."""

    def __init__(self, seed: int | str = 0, replay: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._replay = replay
        self.made: list[int] = []

    def below(self, limit: int) -> int:
        """A number from 0 to `limit - 1`."""
        position = len(self.made)
        if self._replay is None:
            number = self._random.randrange(limit)
        else:
            number = min(self._replay[position], limit - 1) if position < len(self._replay) else 0
        self.made.append(number)
        return number

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[int, T]]) -> T:
        """One of the items, each with its weight."""
        number = self.below(sum(weight for weight, _ in items))
        for weight, item in items:
            if number < weight:
                return item
            number -= weight
        raise AssertionError("the weights do not add up")

    def percent(self, chance: int) -> bool:
        """True in so many cases of a hundred. False is simpler."""
        return self.below(100) >= 100 - chance

    def some(self, items: Sequence[T], at_least: int, at_most: int) -> list[T]:
        """A few of the items, in random order, without repeats."""
        rest = list(items)
        count = at_least + self.below(max(1, min(at_most, len(rest)) - at_least + 1))
        return [rest.pop(self.below(len(rest))) for _ in range(min(count, len(rest)))]


def shrink(made: Sequence[int], fails: Callable[[list[int]], bool], tries: int) -> list[int]:
    """Shorter and smaller choices with which the case still fails, after at most so many tries."""
    return shrinking.shrink(list(made), _simpler, fails, tries)


def _simpler(made: list[int]) -> Iterator[list[int]]:
    """Candidates, those that remove most first."""
    size = len(made) // 2
    while size:
        for start in range(0, len(made), size):
            yield made[:start] + made[start + size :]
        size //= 2
    size = max(1, len(made) // 2)
    while size:
        for start in range(0, len(made), size):
            if any(made[start : start + size]):
                zeros = [0] * len(made[start : start + size])
                yield made[:start] + zeros + made[start + size :]
        size //= 2
    for position, number in enumerate(made):
        if number > 1:
            yield [*made[:position], number // 2, *made[position + 1 :]]
