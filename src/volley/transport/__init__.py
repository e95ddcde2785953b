# SPDX-License-Identifier: Apache-2.0
"""How the coordinator reaches its workers: in this process, over Arrow Flight, or inside Spark's executors.

Task specs enter; task outcomes, split requests, blocks and result batches leave. A transport delivers plans without
looking into them: it must never decide what a task reads or whether it is retried.
"""

from volley.rpc.codec import decode, encode
from volley.rpc.control import Push, Pushed
from volley.rpc.messages import (
    Failure,
    SplitBatch,
    SplitRequest,
    TaskDone,
    TaskFailure,
    TaskSpec,
    WorkerInfo,
)
from volley.transport.base import (
    ExplainsAbsence,
    IngestEndpoint,
    NoRoom,
    ReportsProgress,
    RunningTask,
    Transport,
    TransportContext,
    TransportFactory,
)

__all__ = [
    "ExplainsAbsence",
    "Failure",
    "IngestEndpoint",
    "NoRoom",
    "Push",
    "Pushed",
    "ReportsProgress",
    "RunningTask",
    "SplitBatch",
    "SplitRequest",
    "TaskDone",
    "TaskFailure",
    "TaskSpec",
    "Transport",
    "TransportContext",
    "TransportFactory",
    "WorkerInfo",
    "decode",
    "encode",
]
