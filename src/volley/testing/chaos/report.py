# SPDX-License-Identifier: Apache-2.0
"""Counts what rounds did, by transport, store and kind of fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from volley.testing.chaos.faults import Kind

if TYPE_CHECKING:
    from volley.testing.chaos.run import RoundReport


@dataclass
class Tally:
    """`faults` counts those that struck."""

    faults: Counter[tuple[str, str, Kind]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    answers: int = 0
    native: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, transport: str, store: str, report: RoundReport) -> None:
        self.rounds += 1
        self.answers += report.answers
        self.native += report.native
        self.failures += report.failures
        self.problems += report.problems
        for fault in report.struck:
            self.faults[transport, store, fault.kind] += 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "faults": [[*place, count] for place, count in self.faults.items()],
            "failures": self.failures,
            "rounds": self.rounds,
            "answers": self.answers,
            "native": self.native,
            "problems": self.problems,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        faults = Counter({(where, store, Kind(kind)): n for where, store, kind, n in values["faults"]})
        return cls(
            faults,
            Counter(values["failures"]),
            values["rounds"],
            values["answers"],
            values["native"],
            values["problems"],
        )

    def __add__(self, other: Tally) -> Tally:
        """What two runs did."""
        return Tally(
            self.faults + other.faults,
            self.failures + other.failures,
            self.rounds + other.rounds,
            self.answers + other.answers,
            self.native + other.native,
            self.problems + other.problems,
        )

    def __str__(self) -> str:
        places = sorted({(transport, store) for transport, store, _ in self.faults})
        rows = [["fault", *(f"{transport} {store}" for transport, store in places), "all"]]
        rows.append(["---", *["--:"] * (len(places) + 1)])
        for kind in Kind:
            counts = [self.faults[transport, store, kind] for transport, store in places]
            if any(counts):
                rows.append([kind, *map(str, counts), str(sum(counts))])
        sums = [sum(n for place, n in self.faults.items() if place[:2] == where) for where in places]
        rows.append(["all", *map(str, sums), str(sum(sums))])
        failed = ", ".join(f"{code} {count}" for code, count in self.failures.most_common()) or "none"
        return "\n".join(
            [
                *(f"| {' | '.join(row)} |" for row in rows),
                "",
                f"{sum(sums)} faults in {self.rounds} rounds: {self.answers} right answers,"
                f" {self.native} of them native; failed cleanly: {failed}; {len(self.problems)} problems",
            ]
        )
