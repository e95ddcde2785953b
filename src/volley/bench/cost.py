# SPDX-License-Identifier: Apache-2.0
"""The cost of a query in counts instead of seconds: the same on every machine, however busy it is."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession

from volley.observe.report import QueryReport
from volley.rpc.message_counts import MessageCount, query_messages

# py4j tells the JVM which objects Python has dropped whenever the garbage collector finds out.
_GARBAGE = "m\n"


@dataclass(frozen=True)
class Cost:
    """What a native query did. `tasks` counts attempts, those of subqueries too.

    `exchanged_bytes` passed from stage to stage. `jvm_calls` are requests to the JVM from the thread that runs the
    query, from its text to its rows. `messages` went to worker processes, `message_bytes` all together.
    """

    stages: int
    tasks: int
    exchanged_bytes: int
    jvm_calls: int
    messages: int
    message_bytes: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class CostMeter:
    """Measures the one query that runs inside the block, on the thread that enters it.

    `with CostMeter(spark) as meter: ...`, then `meter.cost(volley.last_query(spark))`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        self._calls = 0
        self._sent = MessageCount()

    def __enter__(self) -> CostMeter:
        send, thread = self._client.send_command, threading.get_ident()

        def count(command: str, *arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == thread and not command.startswith(_GARBAGE):
                self._calls += 1
            return send(command, *arguments, **options)

        self._client.send_command = count
        self._sent = query_messages()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The method of the class shows again.
        del self._client.send_command
        before, after = self._sent, query_messages()
        self._sent = MessageCount(after.messages - before.messages, after.size_bytes - before.size_bytes)

    def cost(self, report: QueryReport) -> Cost:
        return Cost(
            stages=len(report.stages),
            tasks=report.native_tasks,
            exchanged_bytes=report.shuffle_bytes,
            jvm_calls=self._calls,
            messages=self._sent.messages,
            message_bytes=self._sent.size_bytes,
        )
