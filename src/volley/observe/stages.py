# SPDX-License-Identifier: Apache-2.0
"""The stages of a query in its report, read off its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

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
from volley.observe.exchanges import exchange_reports
from volley.observe.report import OperatorReport, StageReport


def stage_reports(events: Iterable[Event]) -> tuple[StageReport, ...]:
    """One report a finished stage, in the order of their numbers; operators are summed over the tasks."""
    events = tuple(events)
    exchanges = exchange_reports(events)
    started: dict[int, StageStarted] = {}
    attempts: dict[int, int] = {}
    last_task: dict[int, int] = {}
    feeds: dict[int, list[FeedStatus]] = {}
    operators: dict[int, dict[tuple[int, str], dict[str, int]]] = {}
    recomputed: Counter[int] = Counter()
    operators_spilled: Counter[int] = Counter()
    shuffle_spilled: Counter[int] = Counter()
    reports: dict[int, StageReport] = {}
    for event in events:
        match event:
            case StageStarted():
                started[event.stage.stage] = event
            case TaskStarted():
                stage = event.attempt.task.stage.stage
                attempts[stage] = attempts.get(stage, 0) + 1
                recomputed[stage] += stage in reports
                last_task[stage] = max(last_task.get(stage, 0), event.attempt.task.task)
            case FeedFinished():
                feeds.setdefault(event.stage.stage, []).append(event.status)
            case TaskFinished():
                stage = event.attempt.task.stage.stage
                _add(operators.setdefault(stage, {}), event.metrics)
                operators_spilled[stage] += event.metrics.operator_spilled_bytes
                shuffle_spilled[stage] += event.metrics.shuffle_spilled_bytes
            case StageFinished():
                stage = event.stage.stage
                reports[stage] = StageReport(
                    stage=stage,
                    # Feeds add tasks while a stage runs.
                    tasks=max(started[stage].tasks, last_task.get(stage, 0) + 1),
                    planned_tasks=started[stage].planned_tasks,
                    workers=started[stage].workers,
                    attempts=attempts.get(stage, 0),
                    rows=event.rows,
                    bytes=event.size_bytes,
                    seconds=event.seconds,
                    operator_spilled_bytes=operators_spilled[stage],
                    shuffle_spilled_bytes=shuffle_spilled[stage],
                    decisions=started[stage].decisions,
                    operators=tuple(
                        OperatorReport(name, tuple(values.items()))
                        for (_, name), values in sorted(operators.get(stage, {}).items())
                    ),
                    feeds=tuple(feeds.get(stage, ())),
                )
    return tuple(
        # What ran after the end of the stage counts too.
        replace(
            reports[stage],
            attempts=attempts.get(stage, 0),
            recomputed_tasks=recomputed[stage],
            exchange=exchanges.get(stage),
            operator_spilled_bytes=operators_spilled[stage],
            shuffle_spilled_bytes=shuffle_spilled[stage],
        )
        for stage in sorted(reports)
    )


def _add(sums: dict[tuple[int, str], dict[str, int]], task: TaskMetrics) -> None:
    for position, operator in enumerate(task.operators):
        # Tasks of a stage run the same plan, so the same position is the same operator.
        values = sums.setdefault((position, operator.name), {})
        for name, value in operator.values:
            values[name] = values.get(name, 0) + value
