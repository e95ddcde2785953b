# SPDX-License-Identifier: Apache-2.0
"""Plans over files with few keys, and their runs with stages that change: the rows must be those of one task."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import EventLog, StageAbsorbed, StageStarted, TaskFailed
from volley.plan.expressions import AggregateCall, AggregateMode, Attribute, Call, Expression, Literal
from volley.plan.nodes import Aggregate, DataFile, Exchange, FileScan, Node, Partitioning
from volley.plan.types import BOOLEAN, LONG
from volley.shuffle.memory import MemoryStore
from volley.stages.cut import make_stages
from volley.stages.limits import PlannerLimits
from volley.testing.limits import UNMERGED
from volley.transport.local import LocalTransport

WORKERS = 3
COUNT = Attribute(30, "n", LONG)


def table(
    directory: Path,
    columns: tuple[Attribute, ...],
    rows: int,
    seed: int,
    hot: float = 0.0,
    files: int = WORKERS + 1,
) -> FileScan:
    """Files with NULLs and duplicates among the keys; `hot` is the share of rows that have one and the same key."""
    chance = random.Random(seed)
    found = []
    for number in range(files):
        keys = [
            7 if chance.random() < hot else chance.choice([None, *range(40)]) for _ in range(rows // files)
        ]
        path = directory / f"{seed}-{number}.parquet"
        values = [chance.randrange(1000) for _ in keys]
        names = [column.name for column in columns]
        pq.write_table(pa.table(dict(zip(names, (keys, values), strict=True))), path)
        found.append(DataFile(str(path), path.stat().st_size, int(path.stat().st_mtime * 1000)))
    return FileScan("parquet", tuple(found), columns, (), ())


def less(column: Attribute, bound: int) -> Expression:
    return Call("LessThan", (column, Literal(bound, LONG)), BOOLEAN)


def counted(mode: AggregateMode, key: Attribute, child: Node) -> Aggregate:
    """The rows by key, counted as COUNT."""
    call = AggregateCall(Call("Count", (Literal(1, LONG),), LONG), mode, False, None, COUNT.id)
    return Aggregate((key,), (call,), (COUNT,), (key, COUNT), child)


def by(key: Attribute, child: Node) -> Exchange:
    return Exchange(Partitioning.HASH, WORKERS, (key,), (), child)


def run(
    plan: Node,
    workers: int,
    limits: PlannerLimits,
    deferred: Mapping[int, frozenset[int]] | None = None,
) -> tuple[list[tuple[object, ...]], EventLog]:
    log = EventLog()
    transport = LocalTransport(workers, workers, MemoryStore)
    stream = execute(
        make_stages(plan, workers, limits),
        transport,
        RunOptions(timeout_seconds=60, attempts=1, events=log, limits=limits, deferred=deferred),
    )
    rows = [row for batch in stream for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    assert transport.held_bytes == 0
    assert not [event for event in log.events if isinstance(event, TaskFailed)]
    return sorted(rows, key=repr), log


def adapted_run(
    plan: Node,
    limits: PlannerLimits = UNMERGED,
    *,
    deferred: Mapping[int, frozenset[int]] | None = None,
    may_be_empty: bool = False,
) -> EventLog:
    """`deferred` are stages that wait for others, if that is not to be planned."""
    expected, _ = run(plan, 1, limits)
    actual, log = run(plan, WORKERS, limits, deferred)
    assert actual == expected
    assert expected or may_be_empty
    return log


def absorbed(log: EventLog) -> int:
    return sum(isinstance(event, StageAbsorbed) for event in log.events)


def decisions(log: EventLog) -> list[str]:
    return [said for event in log.events if isinstance(event, StageStarted) for said in event.decisions]
