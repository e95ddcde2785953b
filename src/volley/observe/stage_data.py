# SPDX-License-Identifier: Apache-2.0
"""The stages and tasks of a query, from the plain data of its events, for display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass
class Task:
    """One attempt. `ended` is None while it runs."""

    task: int
    attempt: int
    worker: str
    started: float
    ended: float | None = None
    rows: int = 0
    size_bytes: int = 0
    code: str | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else self.ended - self.started


@dataclass
class Stage:
    """`operators` are summed over the tasks, by position. `name` is unique in the query."""

    name: str
    part: int
    stage: int
    started: float
    planned_tasks: int
    inputs: list[str]
    decisions: list[str]
    ended: float | None = None
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    spilled_bytes: int = 0
    fetched_bytes: int = 0
    fetch_wait_seconds: float = 0.0
    failures: int = 0
    rollbacks: int = 0
    tasks: list[Task] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    feeds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def skew(self) -> float:
        """How much longer the longest task took than the median one; 1 when there is nothing to compare."""
        seconds = [task.seconds for task in self.tasks if task.seconds is not None and task.code is None]
        middle = median(seconds) if len(seconds) > 1 else 0.0
        return max(seconds) / middle if middle else 1.0


def stages_of(events: Iterable[dict[str, Any]]) -> list[Stage]:
    """The stages in the order of their starts."""
    stages: dict[str, Stage] = {}
    attempts: dict[tuple[str, int, int, int], Task] = {}
    for event in events:
        if "stage" not in event:
            continue
        name = _name(event["part"], event["stage"])
        if event["event"] == "StageStarted":
            stages[name] = Stage(
                name,
                event["part"],
                event["stage"],
                event["at"],
                event["planned_tasks"],
                [_name(event["part"], number) for number in event.get("inputs", ())],
                event["decisions"],
            )
        if name not in stages:
            continue
        stage = stages[name]
        match event["event"]:
            case "StageFinished":
                stage.ended, stage.rows = event["at"], event["rows"]
                stage.size_bytes, stage.seconds = event["size_bytes"], event["seconds"]
            case "StageRolledBack":
                stage.rollbacks += 1
            case "FeedFinished":
                stage.feeds.append(event["status"])
            case "TaskStarted":
                task = Task(event["task"], event["attempt"], event["worker"], event["at"])
                stage.tasks.append(task)
                attempts[name, event["epoch"], task.task, task.attempt] = task
            case "TaskFinished" | "TaskFailed":
                found = attempts.get((name, event["epoch"], event["task"], event["attempt"]))
                if found is not None:
                    _end(stage, found, event)
    return sorted(stages.values(), key=lambda stage: stage.started)


def _end(stage: Stage, task: Task, event: dict[str, Any]) -> None:
    task.ended = event["at"]
    if event["event"] == "TaskFailed":
        task.code = event["code"]
        stage.failures += 1
        return
    task.rows, task.size_bytes = event["rows"], event["bytes"]
    stage.spilled_bytes += event["shuffle_spilled_bytes"] + event["operator_spilled_bytes"]
    stage.fetched_bytes += event.get("fetched_bytes", 0)
    stage.fetch_wait_seconds += event.get("fetch_wait_seconds", 0.0)
    for position, operator in enumerate(event["operators"]):
        if position == len(stage.operators):
            stage.operators.append({"name": operator["name"]})
        total = stage.operators[position]
        for key, value in operator.items():
            if key != "name":
                total[key] = total.get(key, 0) + value


def _name(part: int, stage: int) -> str:
    return f"{part}.{stage}" if part else str(stage)
