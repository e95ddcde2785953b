# SPDX-License-Identifier: Apache-2.0
"""Records of queries that never ran, for tests of what shows them."""

from __future__ import annotations

import time
from typing import Any


def query_record(number: int, **changes: Any) -> dict[str, Any]:
    """A record as the history keeps it."""
    return {
        "version": 1,
        "query": f"{number:012x}",
        "application": "app-1",
        "application_name": "tests",
        "host": "here",
        "process": 1,
        "session": "s",
        "action": "collect",
        "caller": "program.py:1",
        "description": f"query number {number}",
        "started": time.time() - 1000 + number / 1000,
        "ended": time.time(),
        "updated": time.time(),
        "outcome": "answered",
        "engine": "native",
        "error": None,
        "reasons": [],
        "seconds": 2.0,
        "planning_seconds": 0.2,
        "capture_seconds": 0.01,
        "execution_seconds": 1.79,
        "rows": 3,
        "spark_tasks": 0,
        "native_tasks": 0,
        "shuffle_bytes": 0,
        "spilled_bytes": 0,
        "rows_read": 0,
        "bytes_read": 0,
        "bytes_to_read": 0,
        "plan": [],
        "events": [],
        "events_dropped": 0,
    } | changes


def node(
    depth: int, text: str, native: bool = True, reasons: tuple[dict[str, str], ...] = ()
) -> dict[str, Any]:
    return {
        "depth": depth,
        "name": text.split()[0],
        "text": text,
        "native": native,
        "subquery": False,
        "handover": None,
        "reasons": list(reasons),
    }


def stage_events(started: float, stages: int, tasks: int, workers: int = 4) -> list[dict[str, Any]]:
    """Stages one after the other, each with so many tasks; each reads the one before."""
    events: list[dict[str, Any]] = []
    step = 1.5 / stages
    for stage in range(stages):
        base = {"part": 0, "stage": stage, "epoch": 0}
        start = started + 0.3 + stage * step
        inputs = [stage - 1] if stage else []
        words = {
            "tasks": tasks,
            "planned_tasks": tasks + 1,
            "decisions": ["merged partitions"],
            "workers": workers,
        }
        events.append(base | {"event": "StageStarted", "at": start, "inputs": inputs} | words)
        for task in range(tasks):
            turn, width = task // workers, step * workers / tasks
            at = start + turn * width
            attempt = base | {"task": task, "attempt": 0}
            events.append(
                attempt | {"event": "TaskStarted", "at": at, "worker": f"worker-{task % workers}:7070"}
            )
            done = {
                "rows": 1000 + task,
                "bytes": 8000,
                "seconds": width,
                "shuffle_spilled_bytes": 0,
                "operator_spilled_bytes": 0,
                "fetched_bytes": 4096,
                "fetch_wait_seconds": 0.01,
                "operators": [{"name": "AggregateExec", "output_rows": 1000, "elapsed_compute": 2_000_000}],
            }
            events.append(attempt | {"event": "TaskFinished", "at": at + width} | done)
        size = {"rows": 1000 * tasks, "size_bytes": 8000 * tasks, "seconds": step}
        events.append(base | {"event": "StageFinished", "at": start + step} | size)
    return events
