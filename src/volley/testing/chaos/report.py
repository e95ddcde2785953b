# SPDX-License-Identifier: Apache-2.0
"""Counts what rounds did, by transport, store and kind of fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from volley.testing.chaos.faults import Kind
from volley.testing.chaos.jobs import Outcome

if TYPE_CHECKING:
    from volley.testing.chaos.run import RoundReport


@dataclass
class Tally:
    """`faults` counts those that struck, and `drawn` all."""

    faults: Counter[tuple[str, str, Kind]] = field(default_factory=Counter)
    drawn: int = 0
    rounds: int = 0
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)

    def add(self, transport: str, store: str, report: RoundReport) -> None:
        self.rounds += 1
        self.drawn += report.drawn
        self.outcome.add(report)
        for kind in report.struck:
            self.faults[transport, store, kind] += 1

    @property
    def problems(self) -> list[str]:
        return self.outcome.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "faults": [[*place, count] for place, count in sorted(self.faults.items())],
            "drawn": self.drawn,
            "rounds": self.rounds,
            "seconds": round(self.seconds),
            **self.outcome.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        faults = Counter({(where, store, Kind(kind)): n for where, store, kind, n in values["faults"]})
        seconds = values["seconds"]
        return cls(faults, values["drawn"], values["rounds"], seconds, Outcome.from_dict(values))

    def __add__(self, other: Tally) -> Tally:
        """What two runs did."""
        outcome = Outcome()
        outcome.add(self.outcome)
        outcome.add(other.outcome)
        return Tally(
            self.faults + other.faults,
            self.drawn + other.drawn,
            self.rounds + other.rounds,
            self.seconds + other.seconds,
            outcome,
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
        found = self.outcome
        return "\n".join(
            [
                *(f"| {' | '.join(row)} |" for row in rows),
                "",
                f"{sum(sums):,} faults (of {self.drawn:,} that were drawn) in {self.rounds} rounds and"
                f" {self.seconds / 60:.0f} minutes: {found.answers:,} right answers, {found.native:,} of them native;"
                f" left to Spark: {_listed(found.replays)}; failed cleanly: {_listed(found.failures)};"
                f" {len(found.problems)} problems",
            ]
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{code} {count}" for code, count in counts.most_common()) or "none"
