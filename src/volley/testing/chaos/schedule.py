# SPDX-License-Identifier: Apache-2.0
"""Draws what happens in a round from recorded choices, so that a seed repeats it and a failing round can be shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volley.bench.queries import QUERIES
from volley.testing.chaos.arena import POINTS
from volley.testing.chaos.faults import Fault, Kind, Moment
from volley.testing.fuzz.choices import Choices

WRITES = ("append", "overwrite", "dynamic")
_MOST_FAULTS = 3
_MOST_QUERIES = 3
_MOST_COUNT = 6


@dataclass(frozen=True)
class Round:
    """`queries` run at the same time, by name: q01 to q22, random-N or write-MODE. The `faults` strike meanwhile."""

    queries: tuple[str, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.queries)} under {'; '.join(map(str, self.faults)) or 'no fault'}"


def draw_round(choices: Choices, kinds: Sequence[Kind], has_points: bool) -> Round:
    """A round of this seed. With fewer and smaller choices it has fewer queries and faults."""
    faults = [_draw_fault(choices, kinds, has_points) for _ in range(choices.below(_MOST_FAULTS) + 1)]
    queries = [_draw_query(choices) for _ in range(choices.below(_MOST_QUERIES) + 1)]
    return Round(tuple(queries), tuple(faults))


def _draw_fault(choices: Choices, kinds: Sequence[Kind], has_points: bool) -> Fault:
    kind = choices.pick(kinds)
    victim = choices.below(6)
    if has_points and choices.percent(50):
        return Fault(kind, victim, Moment(choices.pick(POINTS), 1 + choices.below(_MOST_COUNT)))
    return Fault(kind, victim, Moment(share=choices.below(100) / 100))


def _draw_query(choices: Choices) -> str:
    match choices.weighted(((5, "tpch"), (3, "random"), (2, "write"))):
        case "tpch":
            return choices.pick(QUERIES)
        case "random":
            return f"random-{choices.below(10_000)}"
        case _:
            return f"write-{choices.pick(WRITES)}"
