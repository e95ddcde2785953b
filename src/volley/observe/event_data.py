# SPDX-License-Identifier: Apache-2.0
"""Events as plain data: JSON objects with a version, for the history and for programs.

    {"event": "TaskFinished", "at": 1700000000.0, "part": 0, "stage": 1, "epoch": 0, "task": 3, "attempt": 0, ...}

`part` tells the native runs of a query apart: a mixed query may have several. Row values are left out, and so are
messages, which may quote them; constants of the query, too. docs/events.md lists every event and field.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from volley.events import Event, FeedStatus, TaskMetrics
from volley.ids import AttemptId, QueryId, StageId
from volley.observe.node_text import outline_name

VERSION = 1
"""Of the records in the history. A field may be added without a new version; none changes its meaning."""

# Messages quote data, and the query of an event is that of its record.
_LEFT_OUT = ("message", "query", "at_seconds")


def event_data(event: Event, part: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = {
        "event": type(event).__name__,
        "at": round(event.at_seconds, 6),
        "part": part,
    }
    for field in fields(event):
        if field.name in _LEFT_OUT:
            continue
        value = getattr(event, field.name)
        match value:
            case StageId():
                data |= {"stage": value.stage, "epoch": value.epoch}
            case AttemptId():
                stage = value.task.stage
                data |= {"stage": stage.stage, "epoch": stage.epoch, "task": value.task.task}
                data["attempt"] = value.attempt
            case TaskMetrics():
                data |= _metrics(value)
            case _:
                data[field.name] = _plain(value)
    return data


def _metrics(metrics: TaskMetrics) -> dict[str, Any]:
    return {
        "rows": metrics.rows,
        "bytes": metrics.size_bytes,
        "seconds": round(metrics.seconds, 6),
        "shuffle_spilled_bytes": metrics.shuffle_spilled_bytes,
        "fetched_bytes": metrics.fetched_bytes,
        "fetch_wait_seconds": round(metrics.fetch_wait_seconds, 6),
        "fetches": [_plain(fetch) for fetch in metrics.fetches],
        "jvm_rows": metrics.jvm_rows,
        "jvm_seconds": round(metrics.jvm_seconds, 6),
        "operator_spilled_bytes": metrics.operator_spilled_bytes,
        "operators": [{"name": operator.name} | dict(operator.values) for operator in metrics.operators],
    }


def _plain(value: Any) -> Any:
    match value:
        case StageId():
            return value.stage
        case QueryId():
            return str(value)
        case FeedStatus():
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)} | {
                "source": outline_name(value.source)
            }
        case float():
            return round(value, 6)
        case tuple() | list():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
