# SPDX-License-Identifier: Apache-2.0
"""The stage reports of a query, from its events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from volley.events import (
    Event,
    FeedFinished,
    FeedStatus,
    StageFinished,
    StageStarted,
    TaskFinished,
    TaskMetrics,
    TaskStarted,
)
from volley.observe.exchanges import ExchangeReport, exchange_reports
from volley.observe.report import OperatorReport, StageReport


def stage_reports(events: Iterable[Event]) -> tuple[StageReport, ...]:
    """One report per finished stage, in the order of their numbers; operators are summed over the tasks."""
    events = tuple(events)
    exchanges = exchange_reports(events)
    stages: defaultdict[int, _StageTotals] = defaultdict(_StageTotals)
    for event in events:
        match event:
            case StageStarted():
                stages[event.stage.stage].started = event
            case TaskStarted():
                stages[event.attempt.task.stage.stage].add_attempt(event)
            case FeedFinished():
                stages[event.stage.stage].feeds.append(event.status)
            case TaskFinished():
                stages[event.attempt.task.stage.stage].add_metrics(event.metrics)
            case StageFinished():
                stages[event.stage.stage].finish(event)
    finished = ((stage, totals) for stage, totals in sorted(stages.items()) if totals.report is not None)
    return tuple(totals.final_report(exchanges.get(stage)) for stage, totals in finished)


@dataclass
class _StageTotals:
    """Adds up the events of one stage. `report` is set when the stage finishes."""

    started: StageStarted | None = None
    report: StageReport | None = None
    attempts: int = 0
    recomputed_tasks: int = 0
    last_task: int = 0
    operator_spilled_bytes: int = 0
    shuffle_spilled_bytes: int = 0
    feeds: list[FeedStatus] = field(default_factory=list)
    operators: dict[tuple[int, str], Counter[str]] = field(default_factory=dict)
    """By position and name: the tasks of a stage run the same plan, so the same position is the same operator."""

    def add_attempt(self, event: TaskStarted) -> None:
        self.attempts += 1
        self.recomputed_tasks += self.report is not None
        self.last_task = max(self.last_task, event.attempt.task.task)

    def add_metrics(self, task: TaskMetrics) -> None:
        self.operator_spilled_bytes += task.operator_spilled_bytes
        self.shuffle_spilled_bytes += task.shuffle_spilled_bytes
        for position, operator in enumerate(task.operators):
            sums = self.operators.setdefault((position, operator.name), Counter())
            for name, value in operator.values:
                sums[name] += value

    def finish(self, event: StageFinished) -> None:
        assert self.started is not None, "a stage starts before it finishes"
        self.report = StageReport(
            stage=event.stage.stage,
            # Feeds add tasks while a stage runs.
            tasks=max(self.started.tasks, self.last_task + 1),
            planned_tasks=self.started.planned_tasks,
            workers=self.started.workers,
            attempts=self.attempts,
            rows=event.rows,
            bytes=event.size_bytes,
            seconds=event.seconds,
            operator_spilled_bytes=self.operator_spilled_bytes,
            shuffle_spilled_bytes=self.shuffle_spilled_bytes,
            decisions=self.started.decisions,
            operators=tuple(
                OperatorReport(name, tuple(values.items()))
                for (_, name), values in sorted(self.operators.items())
            ),
            feeds=tuple(self.feeds),
            taken_over=self.started.taken_over,
            pruned_files=self.started.pruned_files,
        )

    def final_report(self, exchange: ExchangeReport | None) -> StageReport:
        """The report, with attempts that ran after the end of the stage because its output was lost."""
        assert self.report is not None
        return replace(
            self.report,
            attempts=self.attempts,
            recomputed_tasks=self.recomputed_tasks,
            exchange=exchange,
            operator_spilled_bytes=self.operator_spilled_bytes,
            shuffle_spilled_bytes=self.shuffle_spilled_bytes,
        )
