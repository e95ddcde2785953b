"""Who reads which unit.

The units of a scan are dealt to its tasks before they start: the largest first, each to the task that has least so far.
What a task was dealt is remembered, so every attempt at it reads the same units and the committed result has each
unit exactly once.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from volley.ids import AttemptId
from volley.splits.source import SplitSource, Unit


@dataclass(frozen=True)
class Taken:
    """Units of one scan that an attempt was given: `scan` counts the scans of the stage's plan from its top."""

    scan: int
    units: tuple[bytes, ...]


class Feed:
    """The units of one scan, dealt to `tasks`. Closes the source when it has all of it."""

    def __init__(self, scan: int, source: SplitSource, tasks: int) -> None:
        self.scan = scan
        try:
            self._dealt = deal(list(source.units()), tasks)
        finally:
            source.close()
        self._taken: dict[AttemptId, int] = {}

    def take(self, attempt: AttemptId) -> Taken:
        """The units of the attempt's task, the same for every attempt."""
        units = self._dealt[attempt.task.task]
        self._taken[attempt] = len(units)
        return Taken(self.scan, tuple(unit.payload for unit in units))

    @property
    def taken(self) -> dict[AttemptId, int]:
        """How many units each attempt was given."""
        return dict(self._taken)


def deal(units: list[Unit], tasks: int) -> list[list[Unit]]:
    """Every unit to one task, sizes as even as the largest-first rule makes them, order kept within a task."""
    if tasks == 1:
        return [units]
    loads = [(0, 0, task) for task in range(tasks)]
    mine: list[list[int]] = [[] for _ in range(tasks)]
    for index in sorted(range(len(units)), key=lambda index: -(units[index].size_bytes or 0)):
        size_bytes, count, task = heapq.heappop(loads)
        mine[task].append(index)
        heapq.heappush(loads, (size_bytes + (units[index].size_bytes or 0), count + 1, task))
    return [[units[index] for index in sorted(indices)] for indices in mine]
