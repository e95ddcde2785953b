# SPDX-License-Identifier: Apache-2.0
"""Who runs a query, and how: one value from the client to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from volley.cancellation import CancellationToken
from volley.events import EventLog
from volley.ids import QueryId
from volley.rpc.messages import TaskDone
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits

RESULT_BUFFER_BYTES = 64 * 2**20
NOTHING_GIVEN: Mapping[int, Sequence[TaskDone]] = {}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Who runs a query, and how.

    `limits` decide how stages adapt to the sizes of their inputs. A task is given up after `attempts` failures. When no
    worker is left the query waits `absence_seconds` for one, which only makes sense where its data outlives workers.
    `given` are the outputs of stages that have run elsewhere, by the numbers of their `MaterializedInput`. `deferred`
    are the stages that wait for others, if that is not to be planned here.
    """

    timeout_seconds: float
    attempts: int
    limits: PlannerLimits = DEFAULT_LIMITS
    query: QueryId = field(default_factory=QueryId.new)
    token: CancellationToken = field(default_factory=CancellationToken)
    events: EventLog = field(default_factory=EventLog)
    result_buffer_bytes: int = RESULT_BUFFER_BYTES
    absence_seconds: float = 0.0
    given: Mapping[int, Sequence[TaskDone]] = field(default_factory=dict)
    deferred: Mapping[int, frozenset[int]] | None = None
