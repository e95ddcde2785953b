# SPDX-License-Identifier: Apache-2.0
"""Counts what rounds did, by transport, store and kind of fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from volley.testing.chaos.faults import Kind
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

    def __str__(self) -> str:
        places = sorted({(transport, store) for transport, store, _ in self.faults})
        heads = [f"{transport} {store}" for transport, store in places]
        lines = [
            f"| fault | {' | '.join(heads)} | all |",
            f"| --- |{' --: |' * (len(heads) + 1)}",
        ]
        for kind in Kind:
            counts = [self.faults[transport, store, kind] for transport, store in places]
            if any(counts):
                lines.append(f"| {kind} | {' | '.join(map(str, counts))} | {sum(counts)} |")
        failed = ", ".join(f"{code} {count}" for code, count in self.failures.most_common()) or "none"
        return "\n".join(
            [
                *lines,
                "",
                f"{sum(self.faults.values())} faults in {self.rounds} rounds: {self.answers} right answers,"
                f" {self.native} of them native; failed cleanly: {failed}; {len(self.problems)} problems",
            ]
        )
