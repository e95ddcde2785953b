# SPDX-License-Identifier: Apache-2.0
"""What the TPC-H queries cost, in counts: a table in the repository, against which runs are compared.

`make costs` writes it anew. A change that makes queries cost more, or less, shows in its diff.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import ceil
from pathlib import Path

from volley.bench.cost import Cost

TABLE = Path(__file__).with_name("tpch_costs.csv")
KEYS = ("settings", "query")
COUNTS = tuple(field.name for field in fields(Cost))

# The shares by which counts may differ from the recorded ones. What runs on several workers depends a little on which
# of two stages ends first, and on which task gets which batch.
TOLERANCES = {"jvm_calls": 0.0, "stages": 0.1, "tasks": 0.1, "messages": 0.1} | {
    "exchanged_bytes": 0.05,
    "message_bytes": 0.1,
}
# Counts up to this one do not differ at all, except bytes.
EXACT_UP_TO = 2
SLACK_BYTES = 16 * 1024
_REPETITIONS = 5
_TRIES = 3

Range = tuple[int, int]


class Costs:
    """Compares costs with the table or, if told to record, collects them for a new one.

    The table is about one release of Spark, in which every query of the suite runs on the default deployment.
    """

    def __init__(self, *, record: bool, applies: bool = True) -> None:
        self._record = record
        self._applies = applies
        self._table = {} if record else _read()
        self._found: dict[tuple[str, str], dict[str, Range]] = {}

    def check(self, settings: str, query: str, cost: Cost, again: Callable[[], Cost]) -> None:
        """Fail if the cost of a query is not the known one. `again` runs it again, to see how much varies."""
        if self._record:
            self._found[settings, query] = _summarize([cost, *(again() for _ in range(_REPETITIONS))])
        elif self._applies:
            problems = differences(self._table[settings, query], cost)
            # Stages that end in another order may be planned otherwise. A regression is there every time.
            for _ in range(_TRIES if problems else 0):
                problems = problems and differences(self._table[settings, query], again())
            assert not problems, f"{query}, {settings}: {'; '.join(problems)}. If that is meant: make costs"

    def save(self) -> None:
        """Write what was recorded. Rows that were not run this time stay."""
        if not self._found:
            return
        rows = (_read() if TABLE.exists() else {}) | self._found
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, (*KEYS, *COUNTS), lineterminator="\n")
            writer.writeheader()
            for (settings, query), values in sorted(rows.items()):
                cells = {name: _to_text(bounds) for name, bounds in values.items()}
                writer.writerow({"settings": settings, "query": query, **cells})


def differences(known: Mapping[str, Range], cost: Cost) -> list[str]:
    """What is beyond the known cost, or so far below it that the table says nothing any more."""
    problems = []
    for name, value in cost.to_dict().items():
        least, most = allowed(name, known[name])
        if not least <= value <= most:
            problems.append(f"{name} is {value:,}, not {_to_text((least, most))}")
    return problems


def allowed(name: str, known: Range) -> Range:
    least, most = known
    if name.endswith("_bytes"):
        slack = ceil(most * TOLERANCES[name]) + SLACK_BYTES
    else:
        slack = ceil(most * TOLERANCES[name]) if most > EXACT_UP_TO else 0
    return max(0, least - slack), most + slack


def _summarize(costs: list[Cost]) -> dict[str, Range]:
    found = [cost.to_dict() for cost in costs]
    return {name: (min(cost[name] for cost in found), max(cost[name] for cost in found)) for name in COUNTS}


def _read() -> dict[tuple[str, str], dict[str, Range]]:
    with TABLE.open(newline="") as file:
        return {
            (row["settings"], row["query"]): {name: _from_text(row[name]) for name in COUNTS}
            for row in csv.DictReader(file)
        }


def _to_text(bounds: Range) -> str:
    least, most = bounds
    return str(least) if least == most else f"{least}-{most}"


def _from_text(cell: str) -> Range:
    least, _, most = cell.partition("-")
    return int(least), int(most or least)
