# SPDX-License-Identifier: Apache-2.0
"""Draws what happens in a round, so that a seed repeats it, and shrinks a round that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from volley.bench.queries import QUERIES
from volley.testing.chaos.faults import Fault, Kind, Moment
from volley.testing.chaos.programs import PROGRAMS
from volley.testing.chaos.work import WRITES
from volley.testing.fuzz.choices import Choices
from volley.testing.shrinking import shrink

_MOST_FAULTS = 8
_MOST_QUERIES = 4
_MOST_OTHERS = 3
_MOST_COUNT = 8
_RANDOM_QUERIES = 10_000


@dataclass(frozen=True)
class Round:
    """`queries` run at the same time, by name: q01 to q22, random-N, write-MODE or that of a program. Another driver
    runs `others`. The `faults` strike meanwhile."""

    queries: tuple[str, ...]
    faults: tuple[Fault, ...]
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        others = f", elsewhere {', '.join(self.others)}," if self.others else ""
        return f"{', '.join(self.queries)}{others} under {'; '.join(map(str, self.faults)) or 'no fault'}"


def draw_round(
    choices: Choices, kinds: Sequence[Kind], points: Sequence[str] = (), *, has_others: bool = False
) -> Round:
    """A round of this seed."""
    faults = [_draw_fault(choices, kinds, points) for _ in range(choices.below(_MOST_FAULTS) + 1)]
    queries = [_draw_query(choices) for _ in range(choices.below(_MOST_QUERIES) + 1)]
    others = [_draw_query(choices) for _ in range(choices.below(_MOST_OTHERS + 1))] if has_others else []
    return Round(tuple(queries), tuple(faults), tuple(others))


def shrink_round(plan: Round, fails: Callable[[Round], bool], tries: int) -> Round:
    """A round with fewer queries and faults that still fails, after at most so many tries."""
    return shrink(plan, _simpler, fails, tries)


def _simpler(plan: Round) -> Iterator[Round]:
    """Candidates, those that leave out most first. One query and one fault remain."""
    if plan.others:
        yield replace(plan, others=())
    if len(plan.faults) > 1:
        half = len(plan.faults) // 2
        yield replace(plan, faults=plan.faults[:half])
        yield replace(plan, faults=plan.faults[half:])
    if len(plan.queries) > 1:
        yield from (replace(plan, queries=(query,)) for query in plan.queries)
    if len(plan.faults) > 2:
        for number in range(len(plan.faults)):
            yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])


def _draw_fault(choices: Choices, kinds: Sequence[Kind], points: Sequence[str]) -> Fault:
    kind = choices.pick(kinds)
    victim = choices.below(6)
    if points and choices.percent(50):
        return Fault(kind, victim, Moment(choices.pick(points), 1 + choices.below(_MOST_COUNT)))
    return Fault(kind, victim, Moment(share=choices.below(100) / 100))


def _draw_query(choices: Choices) -> str:
    match choices.weighted(((5, "tpch"), (3, "random"), (3, "program"), (2, "write"))):
        case "tpch":
            return choices.pick(QUERIES)
        case "random":
            return f"random-{choices.below(_RANDOM_QUERIES)}"
        case "program":
            return choices.pick(tuple(PROGRAMS))
        case _:
            return f"write-{choices.pick(WRITES)}"
