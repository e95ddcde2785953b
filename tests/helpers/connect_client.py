# SPDX-License-Identifier: Apache-2.0
"""A client of Spark Connect that shows every message, in the process of the server.

PySpark's own client would not do in this process, where Volley may have wrapped it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc, relations_pb2


@dataclass(frozen=True)
class Answer:
    """What a server sent for a query."""

    responses: tuple[Any, ...]

    @property
    def kinds(self) -> list[str]:
        """What each response has, apart from ids; progress comes when it likes."""
        fields = ("schema", "arrow_batch", "metrics", "result_complete")
        kinds = [next((f for f in fields if response.HasField(f)), "") for response in self.responses]
        return [kind for kind in kinds if kind]

    @property
    def schema(self) -> Any:
        return next(response.schema for response in self.responses if response.HasField("schema"))

    @property
    def table(self) -> pa.Table:
        streams: list[bytes] = []
        for response in self.responses:
            if response.HasField("arrow_batch"):
                # Before Spark 4.1, there are no chunks.
                if not getattr(response.arrow_batch, "chunk_index", 0):
                    streams.append(b"")
                streams[-1] += response.arrow_batch.data
        return pa.concat_tables([pa.ipc.open_stream(stream).read_all() for stream in streams])

    @property
    def rows(self) -> list[str]:
        return sorted(map(str, zip(*(column.to_pylist() for column in self.table.columns), strict=True)))

    @property
    def metrics(self) -> dict[str, dict[str, int]]:
        """By the name of the plan's node."""
        objects = [one for response in self.responses for one in response.metrics.metrics]
        return {
            one.name: {key: value.value for key, value in one.execution_metrics.items()} for one in objects
        }


class ConnectClient:
    """One session. Requests are those of PySpark's client, without its retries."""

    def __init__(self, address: str, user: str = "tester", *, token: str = "", channel: Any = None) -> None:
        self.session = str(uuid.uuid4())
        self.context = base_pb2.UserContext(user_id=user)
        self.metadata: Sequence[tuple[str, str]] = (
            [("authorization", f"Bearer {token}")] if token else [("x-test", "kept")]
        )
        self._channel = channel or grpc.insecure_channel(address)
        make_stub: Any = base_pb2_grpc.SparkConnectServiceStub
        self.stub = make_stub(self._channel)

    def request(self, sql: str, *, reattachable: bool = False, tags: Sequence[str] = ()) -> Any:
        return self.ask(relations_pb2.Relation(sql=relations_pb2.SQL(query=sql)), reattachable, tags)

    def ask(self, relation: Any, reattachable: bool = False, tags: Sequence[str] = ()) -> Any:
        """A request for the rows of a relation."""
        request = base_pb2.ExecutePlanRequest(
            session_id=self.session,
            user_context=self.context,
            operation_id=str(uuid.uuid4()),
            plan=base_pb2.Plan(root=relation),
            tags=tags,
        )
        if reattachable:
            options = base_pb2.ReattachOptions(reattachable=True)
            request.request_options.append(
                base_pb2.ExecutePlanRequest.RequestOption(reattach_options=options)
            )
        return request

    def query(self, sql: str, *, reattachable: bool = False) -> Answer:
        return self.execute(self.request(sql, reattachable=reattachable))

    def execute(self, request: Any) -> Answer:
        return Answer(tuple(self.stub.ExecutePlan(request, metadata=self.metadata)))

    def reattach(self, operation: str, after: str = "") -> Iterator[Any]:
        request = base_pb2.ReattachExecuteRequest(
            session_id=self.session, user_context=self.context, operation_id=operation
        )
        if after:
            request.last_response_id = after
        return iter(self.stub.ReattachExecute(request, metadata=self.metadata))

    def release(self, operation: str, until: str = "") -> Any:
        request = base_pb2.ReleaseExecuteRequest(
            session_id=self.session, user_context=self.context, operation_id=operation
        )
        if until:
            request.release_until.response_id = until
        else:
            request.release_all.SetInParent()
        return self.stub.ReleaseExecute(request, metadata=self.metadata)

    def interrupt(self, *, tag: str = "", operation: str = "") -> list[str]:
        kinds = base_pb2.InterruptRequest.InterruptType
        request = base_pb2.InterruptRequest(session_id=self.session, user_context=self.context)
        request.interrupt_type = kinds.INTERRUPT_TYPE_ALL
        if tag:
            request.interrupt_type, request.operation_tag = kinds.INTERRUPT_TYPE_TAG, tag
        if operation:
            request.interrupt_type = kinds.INTERRUPT_TYPE_OPERATION_ID
            request.operation_id = operation
        return list(self.stub.Interrupt(request, metadata=self.metadata).interrupted_ids)

    def states(self, operation: str) -> dict[str, str]:
        request = base_pb2.GetStatusRequest(session_id=self.session, user_context=self.context)
        request.operation_status.operation_ids.append(operation)
        response = self.stub.GetStatus(request, metadata=self.metadata)
        names = base_pb2.GetStatusResponse.OperationStatus.OperationState
        return {one.operation_id: names.Name(one.state) for one in response.operation_statuses}

    def set(self, key: str, value: str) -> None:
        request = base_pb2.ConfigRequest(session_id=self.session, user_context=self.context)
        request.operation.set.pairs.add(key=key, value=value)
        self.stub.Config(request, metadata=self.metadata)

    def close(self) -> None:
        self.release_session()
        self._channel.close()

    def release_session(self) -> None:
        request = base_pb2.ReleaseSessionRequest(session_id=self.session, user_context=self.context)
        self.stub.ReleaseSession(request, metadata=self.metadata)


def error_info(error: Any) -> tuple[Any, str, dict[str, str]]:
    """The code, the message and the details of a failed call; without what differs each time."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    status.details[0].Unpack(info)
    details = {"reason": info.reason, "domain": info.domain} | dict(info.metadata)
    details["classes"] = json.loads(details["classes"])
    return error.code(), status.message, {k: v for k, v in details.items() if k != "errorId"}
