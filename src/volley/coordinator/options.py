# SPDX-License-Identifier: Apache-2.0
"""The options of one query run, passed as one value from the client to the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from volley.cancellation import CancellationToken
from volley.coordinator.checkpoint import Checkpoint
from volley.events import EventLog
from volley.ids import QueryId, StageId
from volley.rpc.messages import TaskDone
from volley.splits.file_feed import FileFeed
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits
from volley.storage.settings import StoreSettings

RESULT_BUFFER_BYTES = 64 * 2**20
NO_INPUTS: Mapping[int, Sequence[TaskDone]] = {}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run one query.

    `limits` decide how stages adapt to the sizes of their inputs. A task fails for good after `attempts` failures. If
    no worker is left, the query waits `absence_seconds` for one; that only helps if its data outlives workers.
    `materialized_inputs` are the outputs of stages that ran elsewhere, by the number of their `MaterializedInput`.
    `deferred` lists the stages that wait for others; None means that the driver plans that itself. `traceparent` is the
    parent of the spans of a stage's tasks. `settings` are the session's options for workers. `stores` gives the object
    stores of a task that is sent now; it may block, and is called for each task. `sorts_joins`: a join that does not
    fit into memory is sorted instead; otherwise the query fails with `OperatorMemoryExhausted`. `holds_result`: the
    client uses no row before it has all of them, so a task of the result stage whose worker is lost runs again, and its
    rows replace those that came before. `resumes_result`: such a task continues after the rows that the client has, if
    it gives the same rows again. `keeps_result`: a materialized result stays beyond the deadline, until it is closed.
    `files` are those of the driver that plans name, by the numbers of their feeds. `checkpoint` is where finished
    stages are taken over from, and kept.
    """

    timeout_seconds: float
    attempts: int
    limits: PlannerLimits = DEFAULT_LIMITS
    query: QueryId = field(default_factory=QueryId.new)
    token: CancellationToken = field(default_factory=CancellationToken)
    events: EventLog = field(default_factory=EventLog)
    result_buffer_bytes: int = RESULT_BUFFER_BYTES
    absence_seconds: float = 0.0
    materialized_inputs: Mapping[int, Sequence[TaskDone]] = field(default_factory=dict)
    deferred: Mapping[int, frozenset[int]] | None = None
    traceparent: Callable[[StageId], str] = lambda stage: ""
    settings: tuple[tuple[str, str], ...] = ()
    sorts_joins: bool = True
    holds_result: bool = False
    keeps_result: bool = False
    resumes_result: bool = False
    checkpoint: Checkpoint | None = None
    stores: Callable[[], tuple[StoreSettings, ...]] | None = None
    files: Mapping[int, FileFeed] = field(default_factory=dict)
