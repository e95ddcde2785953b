# SPDX-License-Identifier: Apache-2.0
"""Clients of `volley connect-server` get from it what Spark's own Connect server would send, and it runs natively."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("grpc")

import grpc
from pyspark.sql.connect.proto import base_pb2, relations_pb2

from helpers.connect_client import ConnectClient, error_info
from helpers.connect_program import check_client, run_client
from helpers.running_queries import assert_quiet
from helpers.waiting import eventually
from volley.connect.local_server import SERVICE, find_by_id
from volley.connect_server.daemon import ConnectServer, ConnectServerSettings
from volley.errors import ConfigError
from volley.observe.report import QueryReport
from volley.plan.jvm import singleton
from volley.query import session_state
from volley.security import Security

# Clients before 4.2 do not ask for it.
HAS_STATUS = hasattr(base_pb2, "GetStatusRequest")
ANY_PORT = ConnectServerSettings(port=0, drain_seconds=0)


@pytest.fixture(scope="module")
def server(spark_session: SparkSession) -> Iterator[ConnectServer]:
    serving = ConnectServer(spark_session, ANY_PORT, Security())
    yield serving
    serving.close()


@pytest.fixture
def connect(server: ConnectServer) -> Iterator[Callable[[], ConnectClient]]:
    """Opens sessions, which are closed after the test."""
    clients: list[ConnectClient] = []

    def open_session() -> ConnectClient:
        clients.append(ConnectClient(server.address))
        return clients[-1]

    yield open_session
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[[], ConnectClient]) -> ConnectClient:
    return connect()


@pytest.fixture
def plain(connect: Callable[[], ConnectClient]) -> ConnectClient:
    """A session in which Spark's own server answers everything."""
    client = connect()
    client.set("spark.volley.enabled", "false")
    return client


def slow(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def last_query(spark: SparkSession, client: ConnectClient) -> QueryReport:
    local = find_by_id(spark.sparkContext, client.context.user_id, client.session)
    assert local is not None
    session = session_state.session_id(local.session)
    # It is made after the client has its answer.
    eventually(lambda: session_state.latest(session) is not None)
    report = session_state.latest(session)
    assert report is not None
    return report


QUERIES = {
    "aggregate": "select id % 3 as k, count(*) as n, sum(id) as s, avg(id) as a from range(100) group by 1",
    "types": """
        select cast(id as tinyint) as b, cast(id as decimal(12, 3)) as d, cast(id as string) as s, id / 7 as f,
               date_add(date'2020-02-28', cast(id as int)) as day, timestamp_seconds(id * 86399) as t,
               cast(timestamp'2021-01-01 00:00:00' as timestamp_ntz) as ntz, encode(cast(id as string), 'utf-8') as raw,
               array(id, null) as list, named_struct('x', id, 'y', timestamp_seconds(id)) as pair, null as nothing,
               map('k', timestamp_seconds(id)) as by_key, array(named_struct('z', cast(id as char(3)))) as nested
        from range(5)
    """,
    "no rows": "select id, cast(id as string) as s from range(10) where id > 50",
    "repeated names": "select id, id + 1 as id from range(3)",
}


@pytest.mark.parametrize("name", ["types", *(slow(name) for name in QUERIES if name != "types")])
def test_the_response_stream_is_that_of_sparks_server(
    spark_session: SparkSession, client: ConnectClient, plain: ConnectClient, name: str
) -> None:
    query = QUERIES[name]
    for one in (client, plain):
        one.set("spark.sql.session.timeZone", "America/Los_Angeles")
    native, expected = client.query(query), plain.query(query)
    report = last_query(spark_session, client)
    assert (report.engine, report.spark_tasks) == ("native", 0)
    assert native.rows == expected.rows
    assert native.schema == expected.schema
    assert native.table.schema.equals(expected.table.schema, check_metadata=True)
    # Spark's partitions are batches of their own.
    assert list(dict.fromkeys(native.kinds)) == list(dict.fromkeys(expected.kinds))
    assert native.metrics["Volley native"]["numOutputRows"] == len(native.rows)


@pytest.mark.slow
def test_a_large_result_comes_in_batches_that_clients_accept(client: ConnectClient) -> None:
    answer = client.query("select id, repeat('x', 100) as s from range(100000)")
    batches = [one.arrow_batch for one in answer.responses if one.HasField("arrow_batch")]
    assert len(batches) > 2
    assert all(one.ByteSize() < 4 * 2**20 for one in answer.responses)
    assert [batch.start_offset for batch in batches] == [
        sum(batch.row_count for batch in batches[:n]) for n in range(len(batches))
    ]
    assert answer.table.column("id").to_pylist() == list(range(100_000))


@pytest.mark.since("4.1")
def test_a_row_that_exceeds_a_message_comes_in_chunks(client: ConnectClient, plain: ConnectClient) -> None:
    answers = []
    for one in (client, plain):
        request = one.request("select id, repeat('x', 5000) as s from range(2)")
        options = base_pb2.ResultChunkingOptions(
            allow_arrow_batch_chunking=True, preferred_arrow_chunk_size=2048
        )
        request.request_options.add(result_chunking_options=options)
        answers.append(one.execute(request))
    native, expected = answers
    assert native.metrics["Volley native"]
    assert native.rows == expected.rows
    for answer in answers:
        chunks = [one.arrow_batch for one in answer.responses if one.HasField("arrow_batch")]
        assert max(len(chunk.data) for chunk in chunks) == 2048
        assert max(chunk.num_chunks_in_batch for chunk in chunks) > 2


def test_a_malformed_request_gets_the_error_of_sparks_server(
    server: ConnectServer, spark_session: SparkSession
) -> None:
    def errors(address: str, metadata: Any) -> list[tuple[Any, str]]:
        found = []
        with grpc.insecure_channel(address) as channel:
            for name in ("ExecutePlan", "ReattachExecute", "Interrupt", "ReleaseSession"):
                call = channel.unary_stream(f"/spark.connect.SparkConnectService/{name}")
                with pytest.raises(grpc.RpcError) as raised:
                    list(call(b"\xff\xff", metadata=metadata))
                found.append((raised.value.code(), raised.value.details()))
        return found

    inner = [server._backend._authorization]
    expected = errors(f"127.0.0.1:{find_backend_port(spark_session)}", inner)
    assert errors(server.address, []) == expected


def test_a_client_reattaches_and_releases(client: ConnectClient) -> None:
    request = client.request("select id from range(10)", reattachable=True)
    whole = client.execute(request)
    assert whole.kinds == ["schema", "arrow_batch", "metrics", "result_complete"]
    if HAS_STATUS:
        assert client.states(request.operation_id) == {request.operation_id: "OPERATION_STATE_SUCCEEDED"}
    # The same request again is the same operation, and not another run.
    assert [one.response_id for one in client.execute(request).responses] == [
        one.response_id for one in whole.responses
    ]
    first = whole.responses[0].response_id
    assert tuple(client.reattach(request.operation_id, first)) == whole.responses[1:]
    released = client.release(request.operation_id, first)
    assert released.server_side_session_id == whole.responses[0].server_side_session_id
    with pytest.raises(grpc.RpcError, match="POSITION_NOT_AVAILABLE"):
        list(client.reattach(request.operation_id))
    client.release(request.operation_id)
    with pytest.raises(grpc.RpcError, match="OPERATION_NOT_FOUND"):
        list(client.reattach(request.operation_id, first))


def test_what_is_not_native_is_answered_by_sparks_server(
    spark_session: SparkSession, client: ConnectClient
) -> None:
    request = client.request("select input_file_block_start() as m, id from range(4)", reattachable=True)
    answer = client.execute(request)
    assert len(answer.rows) == 4
    assert not any(name.startswith("Volley") for name in answer.metrics)
    eventually(lambda: last_query(spark_session, client).engine != "native")
    assert last_query(spark_session, client).reasons
    # Spark's server has the operation, and the client cannot tell.
    assert tuple(client.reattach(request.operation_id, answer.responses[0].response_id))
    assert client.release(request.operation_id).operation_id == request.operation_id


def test_a_request_that_spark_answers_is_repeated(client: ConnectClient) -> None:
    """A client whose stream broke asks again, before and after the end: it gets the same responses, of one run."""
    request = client.request("select input_file_block_start() as m, id from range(4)", reattachable=True)
    broken = client.stub.ExecutePlan(request, metadata=client.metadata)
    first = next(broken).response_id
    broken.cancel()
    for _ in range(2):
        answer = client.execute(request)
        assert answer.responses[0].response_id == first
        assert len(answer.rows) == 4
        assert answer.kinds[-1] == "result_complete"
    client.release(request.operation_id)


def test_errors_are_those_of_sparks_server(client: ConnectClient, plain: ConnectClient) -> None:
    for query in (
        "select id / (id - id) as x from range(3)",
        "select nothing_there from range(3)",
        "selec 1",
    ):
        errors = []
        for one in (client, plain):
            with pytest.raises(grpc.RpcError) as raised:
                one.query(query)
            errors.append(error_info(raised.value))
        assert errors[0] == errors[1]


def test_an_option_that_is_wrong_is_an_error_of_the_query(client: ConnectClient) -> None:
    client.set("spark.volley.fallback", "perhaps")
    with pytest.raises(grpc.RpcError, match="INVALID_OPTION"):
        client.query("select 1")


def test_fallback_can_be_forbidden(client: ConnectClient) -> None:
    client.set("spark.volley.fallback", "error")
    with pytest.raises(grpc.RpcError) as raised:
        client.query("select input_file_block_start() from range(4)")
    code, message, details = error_info(raised.value)
    assert (code, details["reason"]) == (grpc.StatusCode.INTERNAL, "org.apache.spark.SparkException")
    assert "[NOT_NATIVE]" in message


ENDLESS = "select count(*) from range(1000000000000000) where id % 7 = 8"


@pytest.mark.parametrize("how", ["all", slow("tag"), slow("operation")])
def test_a_running_query_is_interrupted(client: ConnectClient, how: str) -> None:
    request = client.request(ENDLESS, reattachable=True, tags=["mine"])
    other = client.request("select 1", tags=["other"])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.execute, request)
        eventually(session_state.all_running)
        if HAS_STATUS:
            assert client.states(request.operation_id) == {request.operation_id: "OPERATION_STATE_RUNNING"}
        assert client.execute(other).rows
        assert client.interrupt(tag="other") == []
        choice = {"all": {}, "tag": {"tag": "mine"}, "operation": {"operation": request.operation_id}}
        assert client.interrupt(**choice[how]) == [request.operation_id]
        with pytest.raises(grpc.RpcError) as raised:
            running.result(60)
    eventually(lambda: not session_state.all_running())
    assert_quiet()
    _, message, details = error_info(raised.value)
    assert message == "[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"
    assert (details["errorClass"], details["sqlState"]) == ("OPERATION_CANCELED", "HY008")


@pytest.mark.parametrize("how", ["cancel", slow("release"), slow("session")])
def test_a_client_that_goes_leaves_nothing_running(connect: Callable[[], ConnectClient], how: str) -> None:
    client = connect()
    request = client.request(ENDLESS, reattachable=how != "cancel")
    call = client.stub.ExecutePlan(request, metadata=client.metadata)
    eventually(session_state.all_running)
    if how == "cancel":
        call.cancel()
    elif how == "release":
        client.release(request.operation_id)
    else:
        client.release_session()
    eventually(lambda: not session_state.all_running())
    assert_quiet()


@pytest.mark.slow
def test_a_query_that_is_shown_and_its_tail(client: ConnectClient, plain: ConnectClient) -> None:
    rows = relations_pb2.Relation(
        sql=relations_pb2.SQL(query="select id, 'a' as s from range(5) order by id")
    )
    for relation in (
        relations_pb2.Relation(
            show_string=relations_pb2.ShowString(input=rows, num_rows=2, truncate=20, vertical=False)
        ),
        relations_pb2.Relation(tail=relations_pb2.Tail(input=rows, limit=2)),
    ):
        native, expected = (one.execute(one.ask(relation)) for one in (client, plain))
        assert native.rows == expected.rows
        assert native.schema == expected.schema
        assert native.table.schema == expected.table.schema


@pytest.mark.slow
def test_a_command_runs_once(client: ConnectClient, tmp_path: Path) -> None:
    client.query("create table once_only (n int) using parquet")
    try:
        client.query("with a as (select 1 as n) insert into once_only select * from a")
        assert client.query("select count(*) as n from once_only").rows == ["(1,)"]
    finally:
        client.query("drop table once_only")


@pytest.mark.slow
def test_clients_at_once_have_sessions_of_their_own(connect: Callable[[], ConnectClient]) -> None:
    clients = [connect() for _ in range(4)]

    def work(place: int) -> list[str]:
        client = clients[place]
        client.query(f"create temporary view mine as select id * {place} as n from range(100)")
        return [row for _ in range(5) for row in client.query("select sum(n) as s from mine").rows]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, range(4)))
    assert answers == [[f"({place * 4950},)"] * 5 for place in range(4)]


def test_without_its_token_nobody_is_let_in(spark_session: SparkSession, server: ConnectServer) -> None:
    inner = find_backend_port(spark_session)
    with pytest.raises(grpc.RpcError) as raised:
        ConnectClient(f"127.0.0.1:{inner}").query("select 1")
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def find_backend_port(spark: SparkSession) -> int:
    service = singleton(spark.sparkContext._gateway, f"{SERVICE}.SparkConnectService")
    return int(service.localPort())


def test_beyond_loopback_a_token_and_tls_are_needed(spark_session: SparkSession) -> None:
    for security in (Security(), Security("secret")):
        with pytest.raises(ConfigError, match="no token or no TLS"):
            ConnectServer(spark_session, ConnectServerSettings(host="0.0.0.0", port=0), security)


@pytest.mark.slow
def test_pysparks_own_client(server: ConnectServer) -> None:
    check_client(run_client(f"sc://localhost:{server.port}"))


@pytest.mark.slow
def test_a_client_that_only_pings_stays_connected(server: ConnectServer) -> None:
    """As PySpark's client does during a long query, or while its user thinks; gRPC hangs up after a few by default."""
    settings, ping, goaway, is_answer = 4, 6, 7, 1
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(settings) + http2_frame(settings, is_answer)
    received = b""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(preface)
        connection.settimeout(10.5)
        for _ in range(4):
            connection.sendall(http2_frame(ping, payload=bytes(8)))
            with suppress(TimeoutError):
                while data := connection.recv(1 << 16):
                    received += data
    kinds = []
    while received:
        kinds.append(received[3])
        received = received[9 + int.from_bytes(received[:3], "big") :]
    assert kinds.count(ping) >= 4
    assert goaway not in kinds, "the server hung up"


def http2_frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags, 0, 0, 0, 0]) + payload


BATTERY = Path(__file__).parents[1] / "helpers" / "connect_battery.py"


@pytest.mark.since("4.2")  # the queries are those of a client of today
@pytest.mark.parametrize("one_in", [24, slow(1)])
def test_a_battery_of_queries_with_pysparks_own_client(server: ConnectServer, one_in: int) -> None:
    """Two clients at once, one of them with Volley disabled, see the same."""

    def run(enabled: str) -> dict[str, dict[str, Any]]:
        command = [sys.executable, str(BATTERY), f"sc://localhost:{server.port}", enabled, str(one_in)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return {case["name"]: case for case in map(json.loads, done.stdout.splitlines())}

    with ThreadPoolExecutor(2) as pool:
        native, expected = pool.map(run, ("true", "false"))
    assert {name: case["seen"] for name, case in native.items()} == {
        name: case["seen"] for name, case in expected.items()
    }
    engines = Counter(case["engine"] for case in native.values())
    assert engines["native"] > len(native) / 2, engines
    assert {case["engine"] for case in expected.values()} <= {"spark", "error"}
