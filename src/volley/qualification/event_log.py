# SPDX-License-Identifier: Apache-2.0
"""Reads the SQL queries of Spark's event logs: plain or zstd, one file or a rolling directory, of Spark 3 and 4."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from volley.errors import ConfigError

_SQL = "org.apache.spark.sql.execution.ui.SparkListener"
_COMPRESSED = {".zstd": "zstd", ".zst": "zstd", ".gz": "gzip"}
_NOT_READ = (".lz4", ".snappy", ".lzf")


@dataclass(frozen=True)
class Operator:
    """One operator of a plan: Spark's name for it, and its line in the plan."""

    name: str
    text: str
    depth: int


@dataclass
class LoggedQuery:
    """One SQL execution. Times are in seconds; `task_seconds` is what its tasks computed, all together."""

    application: str
    number: int
    description: str
    started: float
    operators: tuple[Operator, ...]
    seconds: float | None = None
    task_seconds: float = 0.0
    tasks: int = 0
    failed: bool = False


@dataclass
class EventLog:
    application: str = ""
    name: str = ""
    spark_version: str = ""
    queries: dict[int, LoggedQuery] = field(default_factory=dict)


def read_event_log(path: Path) -> EventLog:
    """The queries of one application. ConfigError for what is no event log or cannot be read."""
    log = EventLog()
    stages: dict[int, int] = {}
    found = False
    for event in _events(path):
        kind = event.get("Event", "")
        found = found or kind.startswith(("SparkListener", "org.apache.spark"))
        match kind.removeprefix(_SQL).removeprefix("SparkListener"):
            case "LogStart":
                log.spark_version = str(event.get("Spark Version", ""))
            case "ApplicationStart":
                log.application, log.name = str(event.get("App ID", "")), str(event.get("App Name", ""))
            case "SQLExecutionStart":
                number = int(event["executionId"])
                started = event["time"] / 1000
                operators = tuple(_flatten(event["sparkPlanInfo"], 0))
                description = str(event.get("description", ""))
                log.queries[number] = LoggedQuery(log.application, number, description, started, operators)
            case "SQLAdaptiveExecutionUpdate" if int(event["executionId"]) in log.queries:
                log.queries[int(event["executionId"])].operators = tuple(_flatten(event["sparkPlanInfo"], 0))
            case "SQLExecutionEnd" if int(event["executionId"]) in log.queries:
                query = log.queries[int(event["executionId"])]
                query.seconds = event["time"] / 1000 - query.started
                query.failed = bool(event.get("errorMessage"))
            case "JobStart":
                execution = (event.get("Properties") or {}).get("spark.sql.execution.id")
                if execution is not None:
                    stages |= dict.fromkeys(event.get("Stage IDs", ()), int(execution))
            case "TaskEnd":
                owner = log.queries.get(stages.get(event.get("Stage ID", -1), -1))
                if owner is not None:
                    owner.tasks += 1
                    metrics = event.get("Task Metrics") or {}
                    owner.task_seconds += metrics.get("Executor Run Time", 0) / 1000
    if not found:
        raise ConfigError(f"{path} is no event log of Spark.", hint="Give files of spark.eventLog.dir.")
    return log


def _events(path: Path) -> Iterator[dict[str, Any]]:
    files = [path]
    if path.is_dir():
        files = sorted(
            (file for file in path.iterdir() if file.name.startswith("events_")),
            key=lambda file: _part(file.name),
        )
    for file in files:
        yield from _lines(file)


def _part(name: str) -> int:
    match = re.match(r"events_(\d+)_", name)
    return int(match[1]) if match else 0


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    suffix = file.with_suffix("").suffix if file.suffix == ".inprogress" else file.suffix
    if suffix in _NOT_READ:
        raise ConfigError(
            f"{file}: {suffix[1:]} is not readable outside Java.",
            hint="Write event logs plain or with spark.eventLog.compression.codec=zstd.",
        )
    try:
        with pa.input_stream(str(file), compression=_COMPRESSED.get(suffix)) as stream:
            rest = b""
            while block := stream.read(1 << 20):
                *lines, rest = (rest + block).split(b"\n")
                yield from (event for line in lines if (event := _decode(line)))
            if event := _decode(rest):
                yield event
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error


def _decode(line: bytes) -> dict[str, Any] | None:
    """An event; None for an empty line, or the last one of an application that was killed."""
    try:
        event = json.loads(line) if line.strip() else None
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


# What Spark puts around operators for its own execution.
_WRAPPERS = re.compile(
    r"WholeStageCodegen|InputAdapter|AdaptiveSparkPlan|.*QueryStage$|ReusedExchange|ReusedSubquery|ColumnarToRow"
    r"|RowToColumnar|AQEShuffleRead|CustomShuffleReader|ResultQueryStage|Subquery|SubqueryBroadcast|CommandResult"
    r"|ResultStage"
)


def _flatten(node: dict[str, Any], depth: int) -> Iterator[Operator]:
    name = str(node.get("nodeName", "")).strip()
    below = depth
    if not _WRAPPERS.match(name):
        yield Operator(name, str(node.get("simpleString", "")), depth)
        below = depth + 1
    for child in node.get("children", ()):
        yield from _flatten(child, below)
