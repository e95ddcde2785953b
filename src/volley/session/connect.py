# SPDX-License-Identifier: Apache-2.0
"""The seam with Spark Connect, for sessions whose server is in this process.

Every action of a Connect DataFrame is a request of its client, answered by a stream of a schema and Arrow batches. The
one method that makes this stream is wrapped, once per process. A request for the rows of a relation is planned by the
server's own session and answered like an action of a classic DataFrame; commands, and what Volley does not run, go to
the server as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from volley.batches import empty_batch
from volley.bridge.result import NativeResult
from volley.connect.local_server import LocalSession, find_session
from volley.connect.relations import find_relation, is_only_planned
from volley.observe.connect_metrics import metrics_message
from volley.query import actions, session_state
from volley.session import connect_interrupts
from volley.session.connect_interrupts import interruptible
from volley.session.intercepts import show_string
from volley.session_settings import SEAM, read_enabled_option
from volley.spark_versions.arrow import arrow_schema, sent_schema
from volley.spark_versions.classic import ClassicDataFrame

# The client's method yields the schema, then batches of rows.
Response = Any
Answer = TypeVar("Answer")
_METHOD = "_execute_and_fetch_as_iterator"

# Commands that write rows; others have nothing to run natively.
_WRITES = {
    "write_operation": "save",
    "write_operation_v2": "writeTo",
    "merge_into_table_command": "merge",
}


def install() -> None:
    """Wrap the client's methods. Calling it again changes nothing. Needs PySpark's extra `connect`."""
    from pyspark.sql.connect.client import SparkConnectClient

    original = getattr(SparkConnectClient, _METHOD)
    if hasattr(original, SEAM):
        return

    @wraps(original)
    def execute(
        client: Any, request: Any, observations: dict[str, Any], *arguments: Any, **named: Any
    ) -> Iterator[Response]:
        def ask_server() -> Iterator[Response]:
            return iter(original(client, request, observations, *arguments, **named))

        local = find_session(client)
        # A hook may change a request on its way to the server, and metrics are observed where Spark runs.
        is_special = bool(observations) or bool(getattr(client, "_session_hooks", ()))
        # The responses to some commands never end, such as the events for a streaming listener.
        is_special |= request.plan.HasField("command") and written_by(request.plan) is None
        # The client itself refuses requests of a session that was stopped.
        is_special |= client.is_closed
        if local is None or is_special or read_enabled_option(local.session) is not True:
            yield from ask_server()
        else:
            with interruptible(client, local.session.sparkContext, request) as operation:
                # Those to native rows are made when the query has been reported.
                responses: Iterable[Response] = answer(
                    local,
                    request.plan,
                    lambda: tuple(ask_server()),
                    partial(_responses, client, local),
                    operation.check,
                )
            yield from responses

    setattr(execute, SEAM, True)
    connect_interrupts.install(SparkConnectClient)
    setattr(SparkConnectClient, _METHOD, execute)


@dataclass(frozen=True)
class Rows:
    """The native rows of a plan, in the Arrow types of `schema`, with instants in UTC."""

    schema: StructType
    table: pa.Table


def answer(
    local: LocalSession,
    plan: Any,
    ask_server: Callable[[], Answer],
    use: Callable[[Rows], Answer],
    on_start: Callable[[], None] = lambda: None,
) -> Answer:
    """The answer to a plan of a client: what `ask_server` gives, or what `use` makes of native rows.

    `on_start` is called when a native query has begun and can be cancelled.
    """
    relation = find_relation(plan)
    if relation is None:
        write = written_by(plan)
        return ask_server() if write is None else actions.pass_on(local.session, write, ask_server)
    kind = relation.WhichOneof("rel_type")
    # These two are formatted, and cut off, after the rows are there.
    rows_of = getattr(relation, kind).input if kind in ("show_string", "tail") else relation
    if not is_only_planned(rows_of):
        return actions.pass_on(local.session, "collect", ask_server)
    try:
        frame = local.plan(rows_of.SerializeToString())
        return ask_server() if frame.isStreaming else _run(frame, relation, ask_server, use, on_start)
    except (CapturedException, Py4JError):
        # Raised by the session here. The server raises the same error in the form of its protocol.
        return ask_server()


def _run(
    frame: DataFrame,
    relation: Any,
    ask_server: Callable[[], Answer],
    use: Callable[[Rows], Answer],
    on_start: Callable[[], None],
) -> Answer:
    kind = relation.WhichOneof("rel_type")
    if kind == "show_string":
        return use(_show(frame, relation.show_string))

    def native(result: NativeResult) -> Answer:
        on_start()
        schema = sent_schema(frame.schema)
        table = result.last_rows(relation.tail.limit, schema) if kind == "tail" else result.table(schema)
        return use(Rows(frame.schema, table))

    action = "tail" if kind == "tail" else "collect"
    # The client gets metrics from the server, with its rows.
    return actions.run(frame, action, native=native, spark=ask_server, observes=False)


def written_by(plan: Any) -> str | None:
    """The action of a plan that writes rows; None for others."""
    return _WRITES.get(plan.command.WhichOneof("command_type")) if plan.HasField("command") else None


def _responses(client: Any, local: LocalSession, rows: Rows) -> Iterator[Response]:
    """What the client makes of a response stream: the schema, at least one batch, and metrics."""
    from pyspark.sql.connect.proto import base_pb2

    yield rows.schema
    yield from rows.table.to_batches() or [empty_batch(rows.table.schema)]
    report = session_state.last_query(local.session)
    if report is not None:
        yield from client._build_metrics(base_pb2.ExecutePlanResponse.Metrics(**metrics_message(report)))


def _show(frame: DataFrame, shown: Any) -> Rows:
    """The rows as Spark formats them, in the one cell that the client reads."""
    format_rows = inspect.unwrap(ClassicDataFrame._show_string)
    text = show_string(format_rows, frame, shown.num_rows, shown.truncate, shown.vertical)
    schema = StructType([StructField("show_string", StringType(), False)])
    return Rows(schema, pa.Table.from_pydict({"show_string": [text]}, arrow_schema(schema)))
