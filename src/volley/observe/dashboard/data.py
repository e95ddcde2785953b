# SPDX-License-Identifier: Apache-2.0
"""What the pages show, as plain data: lists of queries, one query in detail, two compared, the health of daemons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from volley.cluster import ask_health
from volley.observe.operator_metrics import with_figures
from volley.observe.stage_data import Stage, stages_of
from volley.rpc.shuffle_messages import ServiceHealth
from volley.security import Security
from volley.support.reasons import MEANINGS

# More bars would be slow to draw and impossible to tell apart.
MAX_TASKS = 5_000
_HEALTH_SECONDS = 3.0
_FIGURES = (
    "seconds",
    "planning_seconds",
    "capture_seconds",
    "execution_seconds",
    "rows",
    "native_tasks",
    "spark_tasks",
    "shuffle_bytes",
    "spilled_bytes",
)


def query_page(record: dict[str, Any]) -> dict[str, Any]:
    """Everything about one query, ready to be drawn."""
    stages = stages_of(record["events"])
    shown = {key: value for key, value in record.items() if key != "events"}
    return shown | {
        "plan": with_figures(record["plan"], stages),
        "stages": [_stage(stage, record["started"]) for stage in stages],
        "exchanges": _exchanges(stages),
        "times": _times(record, stages),
        "recovery": _recovery(record),
        "tasks_left_out": max(0, sum(len(stage.tasks) for stage in stages) - MAX_TASKS),
    }


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two queries side by side: their figures, and the operators of their plans that only one of them has."""
    first, second = query_page(one), query_page(other)
    names = [[node["text"] for node in page["plan"]] for page in (first, second)]
    return {
        "queries": [first, second],
        "figures": [{"name": name, "values": [first.get(name), second.get(name)]} for name in _FIGURES],
        "times": [
            {"name": name, "values": [first["times"][name], second["times"][name]]} for name in first["times"]
        ],
        "only": [
            [text for text in names[0] if text not in names[1]],
            [t for t in names[1] if t not in names[0]],
        ],
        "reasons": [[reason["reason"] for reason in page["reasons"]] for page in (first, second)],
    }


def daemons(addresses: Sequence[str], security: Security) -> list[dict[str, Any]]:
    """The health of workers and shuffle servers."""
    found = []
    for address in addresses:
        health = ask_health(address, security, _HEALTH_SECONDS)
        kind = "shuffle server" if isinstance(health, ServiceHealth) else "worker"
        found.append({"address": address, "kind": kind} | asdict(health))
    return found


def reasons() -> list[dict[str, str]]:
    return [{"reason": str(reason), "meaning": meaning} for reason, meaning in MEANINGS.items()]


def _stage(stage: Stage, origin: float) -> dict[str, Any]:
    return {
        "name": stage.name,
        "start": stage.started - origin,
        "end": None if stage.ended is None else stage.ended - origin,
        "planned_tasks": stage.planned_tasks,
        "inputs": stage.inputs,
        "decisions": stage.decisions,
        "rows": stage.rows,
        "bytes": stage.size_bytes,
        "seconds": stage.seconds,
        "spilled_bytes": stage.spilled_bytes,
        "fetch_wait_seconds": stage.fetch_wait_seconds,
        "failures": stage.failures,
        "rollbacks": stage.rollbacks,
        "skew": round(stage.skew, 2),
        "operators": stage.operators,
        "feeds": stage.feeds,
        "tasks": [
            {
                "task": task.task,
                "attempt": task.attempt,
                "worker": task.worker,
                "start": task.started - origin,
                "end": None if task.ended is None else task.ended - origin,
                "rows": task.rows,
                "bytes": task.size_bytes,
                "code": task.code,
            }
            for task in stage.tasks[:MAX_TASKS]
        ],
    }


def _exchanges(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    by_name = {stage.name: stage for stage in stages}
    return [
        {
            "from": name,
            "to": stage.name,
            "rows": by_name[name].rows,
            "bytes": by_name[name].size_bytes,
            "wait_seconds": stage.fetch_wait_seconds,
        }
        for stage in stages
        for name in stage.inputs
        if name in by_name
    ]


def _times(record: dict[str, Any], stages: Sequence[Stage]) -> dict[str, float]:
    """Where the time went, in seconds. The parts add up to the whole."""
    total = record["seconds"]
    planning, capture = record["planning_seconds"], record["capture_seconds"]
    spans = sorted((s.started, s.ended or record["updated"]) for s in stages)
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    left = max(0.0, total - planning - capture)
    busy = min(busy, left)
    rest, is_native = left - busy, record["engine"] == "native"
    return {
        "Spark's planning": planning,
        "capture": capture,
        "native stages": busy,
        "Spark": 0.0 if is_native else rest,
        "starting and returning rows": rest if is_native else 0.0,
    }


def _recovery(record: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = ("TaskFailed", "StageRolledBack")
    return [
        event | {"at": event["at"] - record["started"]}
        for event in record["events"]
        if event["event"] in kinds
    ]
