# SPDX-License-Identifier: Apache-2.0
"""Draws what happens in a round, so that a seed repeats it, and shrinks a round that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from volley.bench.queries import QUERIES
from volley.testing.chaos.faults import WEIGHTS, Fault, Kind, Moment
from volley.testing.chaos.programs import PROGRAMS
from volley.testing.chaos.work import WRITES
from volley.testing.fuzz.choices import Choices
from volley.testing.shrinking import shrink

_LEAST_FAULTS, _MOST_FAULTS = 80, 200
_LEAST_QUERIES, _MOST_QUERIES = 12, 30
_CLIENTS = (1, 2, 3, 4, 6, 8, 16)
_MOST_OTHERS = 4
# Most last for a moment, so that the next one can strike. A few last longer than a worker may be silent.
_SECONDS = (0.1, 0.2, 0.3, 0.5, 1.0)
_LONG_SECONDS = 6.0
_LONG_PERCENT = 4
_SECONDS_OF_A_QUERY = 1.5
# Of one name, to all workers or servers.
_MESSAGES_OF_A_QUERY = 3
# Spark's answers are computed once for each.
_RANDOM_QUERIES = 60
_FEW_FAULTS = 8


@dataclass(frozen=True)
class Round:
    """`queries` run in this order, `clients` at a time, by name: q01 to q22, random-N, write-MODE or that of a program.
    Another driver runs `others`. The `faults` strike meanwhile."""

    queries: tuple[str, ...]
    faults: tuple[Fault, ...]
    others: tuple[str, ...] = ()
    clients: int = 4

    def __str__(self) -> str:
        others = f", elsewhere {', '.join(self.others)}," if self.others else ""
        faults = "; ".join(map(str, self.faults)) or "no fault"
        return f"{', '.join(self.queries)}, {self.clients} at a time,{others} under {faults}"


def draw_round(
    choices: Choices, kinds: Sequence[Kind], points: Sequence[str] = (), *, has_others: bool = False
) -> Round:
    """A round of this seed."""
    queries = [_draw_query(choices) for _ in range(_between(choices, _LEAST_QUERIES, _MOST_QUERIES))]
    clients = choices.pick(_CLIENTS)
    count = choices.below(_MOST_OTHERS + 1) if has_others and choices.percent(40) else 0
    others = [_draw_query(choices) for _ in range(count)]
    possible = [kind for kind in kinds if others or kind is not Kind.KILL_DRIVER]
    faults = [
        _draw_fault(choices, possible, points, len(queries))
        for _ in range(_between(choices, _LEAST_FAULTS, _MOST_FAULTS))
    ]
    return Round(tuple(queries), tuple(faults), tuple(others), clients)


def shrink_round(plan: Round, fails: Callable[[Round], bool], tries: int) -> Round:
    """A round with fewer queries and faults that still fails, after at most so many tries."""
    return shrink(plan, _simpler, fails, tries)


def _simpler(plan: Round) -> Iterator[Round]:
    """Candidates, those that leave out most first."""
    if plan.faults:
        # Perhaps it fails without any.
        yield replace(plan, faults=())
    if plan.others:
        yield replace(plan, others=())
    if len(plan.faults) > 1:
        half = len(plan.faults) // 2
        yield replace(plan, faults=plan.faults[:half])
        yield replace(plan, faults=plan.faults[half:])
    if len(plan.queries) > 1:
        half = len(plan.queries) // 2
        yield replace(plan, queries=plan.queries[:half])
        yield replace(plan, queries=plan.queries[half:])
    if plan.clients > 1:
        yield replace(plan, clients=1)
    if 2 < len(plan.faults) <= _FEW_FAULTS:
        for number in range(len(plan.faults)):
            yield replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])


def _between(choices: Choices, least: int, most: int) -> int:
    return least + choices.below(most - least + 1)


def _draw_fault(choices: Choices, kinds: Sequence[Kind], points: Sequence[str], queries: int) -> Fault:
    kind = choices.weighted([(WEIGHTS[kind], kind) for kind in kinds])
    victim = choices.below(6)
    seconds = _LONG_SECONDS if choices.percent(_LONG_PERCENT) else choices.pick(_SECONDS)
    if points and choices.percent(50):
        count = 1 + choices.below(_MESSAGES_OF_A_QUERY * queries)
        return Fault(kind, victim, Moment(choices.pick(points), count), seconds)
    begins = choices.below(100) / 100 * _SECONDS_OF_A_QUERY
    return Fault(kind, victim, Moment(count=1 + choices.below(queries), seconds=begins), seconds)


def _draw_query(choices: Choices) -> str:
    match choices.weighted(((3, "tpch"), (6, "random"), (2, "program"), (2, "write"))):
        case "tpch":
            return choices.pick(QUERIES)
        case "random":
            return f"random-{choices.below(_RANDOM_QUERIES)}"
        case "program":
            return choices.pick(tuple(PROGRAMS))
        case _:
            return f"write-{choices.pick(WRITES)}"
