# SPDX-License-Identifier: Apache-2.0
"""The gRPC service: which requests Volley looks at, and what it does with each.

ExecutePlan                       the rows of a query: answered natively, or by Spark's server
ReattachExecute, ReleaseExecute   for responses that Volley has; others are passed on
Interrupt, GetStatus              passed on, and what Volley runs is added
ReleaseSession                    passed on, and what Volley runs for the session is stopped
everything else                   passed on, byte for byte, methods of newer releases included
"""

from __future__ import annotations

import hmac
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from volley.connect.local_server import LocalSession, find_by_id
from volley.connect.relations import find_relation
from volley.connect_server.backend import SERVICE_PATH, Backend
from volley.connect_server.operations import (
    DelegationFailed,
    Operation,
    OperationKey,
    Operations,
    State,
)
from volley.connect_server.responses import ResponseWriter
from volley.connect_server.statuses import (
    ALREADY_EXISTS,
    CANCELED,
    NOT_REATTACHABLE,
    Failure,
    abort,
    abort_like,
    status_of,
)
from volley.errors import VolleyError
from volley.query import session_state
from volley.query.interrupts import JobTag, stop_jobs
from volley.session.connect import Rows, answer, written_by
from volley.session.enable import enable
from volley.session_settings import read_enabled_option

_log = logging.getLogger(__name__)

# A response that completes a result has nothing but ids.
_SMALL_BYTES = 1024

_CHUNK_LIMIT = "spark.connect.session.resultChunking.maxChunkSize"
_SMALLEST_CHUNK_BYTES = 1024


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handles every call of clients; with a `token`, only of those that present it.

    `batch_bytes` is about the size of the largest Arrow batch; a stream of a client that can reattach ends after
    `stream_seconds`.
    """

    def __init__(
        self,
        backend: Backend,
        operations: Operations,
        workers: ThreadPoolExecutor,
        *,
        token: str | None,
        batch_bytes: int,
        stream_seconds: float,
    ) -> None:
        self._backend = backend
        self._operations = operations
        self._workers = workers
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._batch_bytes = batch_bytes
        self._stream_seconds = stream_seconds
        self._enabled: set[str] = set()
        self._streams: dict[str, Callable[[bytes, Any], Iterator[bytes]]] = {
            "ExecutePlan": self._execute,
            "ReattachExecute": self._reattach,
        }
        self._calls: dict[str, Callable[[bytes, Any], bytes]] = {
            "ReleaseExecute": self._release,
            "Interrupt": self._interrupt,
            "GetStatus": self._get_status,
            "ReleaseSession": self._release_session,
        }

    def service(self, handler_call_details: Any) -> Any:
        """gRPC asks for the handler of a call. Requests and responses are bytes."""
        path: str = handler_call_details.method
        refusal = self._refusal(handler_call_details.invocation_metadata)
        if refusal:
            _log.warning("refused %s: %s", path, refusal)
            return grpc.stream_stream_rpc_method_handler(partial(_refuse, refusal))
        name = path.removeprefix(SERVICE_PATH)
        if name in self._streams:
            return grpc.unary_stream_rpc_method_handler(self._streams[name])
        if name in self._calls:
            return grpc.unary_unary_rpc_method_handler(partial(self._call, name))
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, path))

    def _refusal(self, metadata: Iterable[tuple[str, Any]]) -> str:
        """Why a call is refused, in the words of Spark's server; empty if it is not."""
        if self._expected is None:
            return ""
        shown = [value for key, value in metadata if key == "authorization"]
        if not shown:
            return "No authentication token provided"
        # Constant time, so that timing reveals nothing about the token.
        matches = len(shown) == 1 and hmac.compare_digest(str(shown[0]).encode(), self._expected)
        return "" if matches else "Invalid authentication token"

    # ------------------------------------------------------------------------------------------- queries

    def _execute(self, raw: bytes, context: Any) -> Iterator[bytes]:
        from pyspark.sql.connect.proto import base_pb2

        request = base_pb2.ExecutePlanRequest()
        local = None
        try:
            request.ParseFromString(raw)
            if _has_rows(request):
                local = self._find_session(request, context)
            operation = None if local is None else self._start(local, request, raw)
        except DecodeError:
            # Spark's server answers with its own error.
            operation = None
        except VolleyError as error:
            abort(context, status_of(error))
        except Failure as failure:
            abort(context, failure.status)
        if operation is None:
            yield from self._pass_on(SERVICE_PATH + "ExecutePlan", [raw], context)
        else:
            yield from self._read(operation, None, context)

    def _start(self, local: LocalSession, request: Any, raw: bytes) -> Operation:
        """Begin a query, or find the one that a client asks for again."""
        id = request.operation_id or str(uuid.uuid4())
        tag = f"volley-connect-{id}"
        operation = Operation(
            _key(request, id),
            raw,
            server_session=local.server_id,
            tags=frozenset(request.tags),
            reattachable=any(option.reattach_options.reattachable for option in request.request_options),
            stop_work=partial(stop_jobs, self._backend.context, tag),
        )
        if not self._operations.add(operation):
            earlier = self._operations.get(operation.key)
            if earlier is None or earlier.request != raw or not earlier.reattachable:
                raise Failure(ALREADY_EXISTS)
            return earlier
        self._workers.submit(self._run, operation, local, request, tag)
        return operation

    def _run(self, operation: Operation, local: LocalSession, request: Any, tag: str) -> None:
        """Answer a query, on a thread of its own. However it ends, its readers are told."""
        try:
            local.keep_alive()
            with JobTag(self._backend.context, tag):
                rows = answer(local, request.plan, operation.delegate, _keep, operation.check_interrupted)
            local.keep_alive()
            if rows is not None:
                writer = ResponseWriter(
                    session=operation.key.session,
                    server_session=local.server_id,
                    operation=operation.key.operation,
                    time_zone=str(local.session.conf.get("spark.sql.session.timeZone")),
                    batch_bytes=self._batch_bytes,
                    chunk_bytes=_chunk_bytes(request, local),
                )
                report = session_state.last_query(local.session)
                schema = local.schema_message(rows.schema)
                operation.answer(writer.write(schema, rows.table, report, completes=operation.reattachable))
        except DelegationFailed:
            # The client was told by Spark's server.
            pass
        except VolleyError as error:
            operation.fail(status_of(error))
        except Exception:
            if operation.interrupted:
                operation.fail(CANCELED)
                return
            # Only reading was tried, so that Spark's server may begin again, and raise its own error.
            _log.info("operation %s is left to Spark", operation.key.operation, exc_info=True)
            operation.hand_over()

    def _reattach(self, raw: bytes, context: Any) -> Iterator[bytes]:
        from pyspark.sql.connect.proto import base_pb2

        try:
            request = base_pb2.ReattachExecuteRequest.FromString(raw)
            operation = self._operations.get(_key(request, request.operation_id))
        except DecodeError:
            operation = None
        if operation is None:
            yield from self._pass_on(SERVICE_PATH + "ReattachExecute", [raw], context)
            return
        if not operation.reattachable:
            abort(context, NOT_REATTACHABLE)
        yield from self._read(operation, raw, context)

    def _read(self, operation: Operation, reattach: bytes | None, context: Any) -> Iterator[bytes]:
        """What a client reads of an operation, from Volley or from Spark's server.

        `reattach` is the request of a client that comes back.
        """
        context.add_callback(partial(_on_end, operation, context))
        with operation.reading():
            if operation.state is not State.DELEGATED:
                seconds = self._stream_seconds if operation.reattachable else None
                try:
                    yield from operation.responses(_last_response(reattach), context.is_active, seconds)
                except Failure as failure:
                    abort(context, failure.status)
            if operation.state is not State.DELEGATED:
                if not operation.reattachable:
                    self._operations.remove(operation)
                return
            yield from self._read_delegated(operation, reattach, context)

    def _read_delegated(self, operation: Operation, reattach: bytes | None, context: Any) -> Iterator[bytes]:
        is_first = operation.send()
        if is_first and operation.interrupted:
            abort(context, CANCELED)
        if is_first or reattach is None:
            # Even if the client comes back: the stream on which it asked may have broken before Spark's server was
            # asked. If it repeats its request, Spark's server gets it again, too.
            name, request = "ExecutePlan", operation.request
        else:
            name, request = "ReattachExecute", reattach
        ended = not operation.reattachable
        error = "the client has gone"
        try:
            for response in self._backend.pass_on(
                SERVICE_PATH + name, [request], context.invocation_metadata(), context.add_callback
            ):
                ended = ended or _completes(response)
                yield response
            error = ""
        except grpc.RpcError as failure:
            ended, error = True, str(failure.details())
            abort_like(context, failure)
        finally:
            # Otherwise the client comes back for the rest.
            if ended:
                operation.end_delegation(error)
                self._operations.remove(operation)

    # ------------------------------------------------------------------------------------------- sessions

    def _find_session(self, request: Any, context: Any) -> LocalSession | None:
        """What the server holds for a session, with Volley enabled; None if Spark's server shall answer."""
        user, session = request.user_context.user_id, request.session_id
        local = find_by_id(self._backend.context, user, session)
        if local is None:
            self._open_session(request, context)
            local = find_by_id(self._backend.context, user, session)
        observed = request.client_observed_server_side_session_id
        if local is None or (observed and observed != local.server_id):
            return None
        if local.server_id not in self._enabled and read_enabled_option(local.session) is not False:
            enable(local.session)
            self._enabled.add(local.server_id)
        return local if read_enabled_option(local.session) is True else None

    def _open_session(self, request: Any, context: Any) -> None:
        """Let Spark's server open a session with a small request.

        If that fails, the query's own request reports why.
        """
        from pyspark.sql.connect.proto import base_pb2

        ask = base_pb2.AnalyzePlanRequest(
            session_id=request.session_id,
            user_context=request.user_context,
            spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
        )
        try:
            self._backend.call("AnalyzePlan", ask.SerializeToString(), context.invocation_metadata())
        except grpc.RpcError as error:
            _log.info("no session was opened: %s", error)

    def _release_session(self, raw: bytes, context: Any) -> bytes:
        from pyspark.sql.connect.proto import base_pb2

        request = base_pb2.ReleaseSessionRequest.FromString(raw)
        for operation in self._of(request):
            self._operations.remove(operation)
        return self._backend.call("ReleaseSession", raw, context.invocation_metadata())

    # ------------------------------------------------------------------------------------------- operations

    def _release(self, raw: bytes, context: Any) -> bytes:
        from pyspark.sql.connect.proto import base_pb2

        request = base_pb2.ReleaseExecuteRequest.FromString(raw)
        operation = self._operations.get(_key(request, request.operation_id))
        if operation is None or operation.state is State.DELEGATED:
            return self._backend.call("ReleaseExecute", raw, context.invocation_metadata())
        if request.HasField("release_until"):
            operation.release_until(request.release_until.response_id)
        else:
            self._operations.remove(operation)
        answer = base_pb2.ReleaseExecuteResponse(
            session_id=request.session_id,
            server_side_session_id=operation.server_session,
            operation_id=request.operation_id,
        )
        return bytes(answer.SerializeToString())

    def _interrupt(self, raw: bytes, context: Any) -> bytes:
        from pyspark.sql.connect.proto import base_pb2

        request = base_pb2.InterruptRequest.FromString(raw)
        kinds = base_pb2.InterruptRequest.InterruptType
        stopped = []
        for operation in self._of(request):
            applies = {
                kinds.INTERRUPT_TYPE_ALL: True,
                kinds.INTERRUPT_TYPE_TAG: request.operation_tag in operation.tags,
                kinds.INTERRUPT_TYPE_OPERATION_ID: request.operation_id == operation.key.operation,
            }
            if applies.get(request.interrupt_type) and operation.state is State.RUNNING:
                stopped.append(operation.key.operation)
            if applies.get(request.interrupt_type):
                operation.interrupt()
        response = base_pb2.InterruptResponse.FromString(
            self._backend.call("Interrupt", raw, context.invocation_metadata())
        )
        response.interrupted_ids.extend(id for id in stopped if id not in response.interrupted_ids)
        return bytes(response.SerializeToString())

    def _get_status(self, raw: bytes, context: Any) -> bytes:
        from pyspark.sql.connect.proto import base_pb2

        answered = self._backend.call("GetStatus", raw, context.invocation_metadata())
        if not hasattr(base_pb2, "GetStatusRequest"):
            return answered
        request = base_pb2.GetStatusRequest.FromString(raw)
        if not request.HasField("operation_status"):
            return answered
        response = base_pb2.GetStatusResponse.FromString(answered)
        states = base_pb2.GetStatusResponse.OperationStatus.OperationState
        names = {
            State.RUNNING: states.OPERATION_STATE_RUNNING,
            State.ANSWERED: states.OPERATION_STATE_SUCCEEDED,
            State.FAILED: states.OPERATION_STATE_FAILED,
        }
        asked = set(request.operation_status.operation_ids)
        mine = {
            operation.key.operation: names[operation.state]
            for operation in self._of(request)
            if operation.state in names and (not asked or operation.key.operation in asked)
        }
        for status in response.operation_statuses:
            status.state = mine.pop(status.operation_id, status.state)
        for id, state in mine.items():
            response.operation_statuses.add(operation_id=id, state=state)
        return bytes(response.SerializeToString())

    def _call(self, name: str, raw: bytes, context: Any) -> bytes:
        try:
            try:
                return self._calls[name](raw, context)
            except DecodeError:
                # Spark's server answers with its own error.
                return self._backend.call(name, raw, context.invocation_metadata())
        except grpc.RpcError as error:
            abort_like(context, error)

    def _of(self, request: Any) -> list[Operation]:
        return self._operations.of_session(request.user_context.user_id, request.session_id)

    # ------------------------------------------------------------------------------------------- the rest

    def _pass_on(self, path: str, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        try:
            yield from self._backend.pass_on(
                path, requests, context.invocation_metadata(), context.add_callback
            )
        except grpc.RpcError as error:
            abort_like(context, error)


def _refuse(why: str, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
    yield b""


def _on_end(operation: Operation, context: Any) -> None:
    """The call of a reader is over, perhaps because the client has gone."""
    operation.wake()
    if not operation.reattachable and operation.state is State.RUNNING:
        operation.interrupt()


def _has_rows(request: Any) -> bool:
    """Whether a request is for the rows of a query, or writes rows. Spark's server refuses ids that are not UUIDs."""
    if request.operation_id and not _is_uuid(request.operation_id):
        return False
    return find_relation(request.plan) is not None or written_by(request.plan) is not None


def _is_uuid(text: str) -> bool:
    try:
        # Python takes more forms than Java.
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def _chunk_bytes(request: Any, local: LocalSession) -> int:
    """The size of the chunks in which a client takes a large batch, chosen as by Spark's server; 0 if it takes none."""
    # Not in every release.
    options = [
        option.result_chunking_options
        for option in request.request_options
        if "result_chunking_options" in option.DESCRIPTOR.fields_by_name
    ]
    if not any(option.allow_arrow_batch_chunking for option in options):
        return 0
    most = int(str(local.session.conf.get(_CHUNK_LIMIT)).rstrip("b"))
    wanted = max(option.preferred_arrow_chunk_size for option in options)
    return max(0, wanted if _SMALLEST_CHUNK_BYTES <= wanted <= most else most)


def _last_response(reattach: bytes | None) -> str | None:
    if reattach is None:
        return None
    from pyspark.sql.connect.proto import base_pb2

    return base_pb2.ReattachExecuteRequest.FromString(reattach).last_response_id or None


def _key(request: Any, operation: str) -> OperationKey:
    return OperationKey(request.user_context.user_id, request.session_id, operation)


def _keep(rows: Rows) -> Rows | None:
    return rows


def _completes(response: bytes) -> bool:
    if len(response) > _SMALL_BYTES:
        return False
    from pyspark.sql.connect.proto import base_pb2

    return bool(base_pb2.ExecutePlanResponse.FromString(response).HasField("result_complete"))
