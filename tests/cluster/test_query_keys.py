# SPDX-License-Identifier: Apache-2.0
"""Sessions that share a token cannot read, write or release each other's data: each query has a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from volley.config import Config
from volley.errors import BlockMissing, PeerRefused, QueryError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import Partitioning
from volley.rpc.blocks import Block
from volley.rpc.client import Client
from volley.rpc.codec import encode
from volley.rpc.control import RESULT_TICKET, Ack, Await, News, Push, Reserve, Watch
from volley.rpc.handshake import Hello, Identity
from volley.rpc.messages import SplitBatch, TaskDone
from volley.rpc.shuffle_messages import (
    CommitAttempt,
    Granted,
    KeepAlive,
    Kept,
    PushChunks,
    PushedChunk,
    ReserveBytes,
)
from volley.security import Security
from volley.shuffle.base import BlockRequest
from volley.shuffle.chunks import checksum_of
from volley.shuffle.factory import ShuffleSettings, driver_reader
from volley.shuffle.frames import Kind, unframe
from volley.shuffle.service.server import push_body
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.stages.graph import Output
from volley.testing.contracts import batch_of, numbers, stage_task
from volley.testing.services import serve_shuffle, service_store
from volley.worker.daemon import Daemon, DaemonSettings

SECURITY = Security("the token of both")


def attempt_of(query: QueryId, task: int = 0) -> AttemptId:
    return AttemptId(TaskId(StageId(query, 0), task), 0)


def without_key(query: QueryId) -> QueryId:
    """The query as somebody knows it who has read its id in a log."""
    return QueryId(query.value)


def with_another_key(query: QueryId) -> QueryId:
    return QueryId(query.value, QueryId.new().key)


STRANGERS = pytest.mark.parametrize("stranger", [without_key, with_another_key])


def test_a_key_is_in_no_text() -> None:
    query = QueryId.new()
    assert query.key
    assert query.key not in f"{query} {query!r} {attempt_of(query)!r}"
    assert query == without_key(query)


class TestShuffleServer:
    @STRANGERS
    def test_every_call_about_a_query_needs_its_key(
        self, tmp_path: Path, stranger: Callable[[QueryId], QueryId]
    ) -> None:
        query = QueryId.new()
        with serve_shuffle(tmp_path) as (server,), Client(server.address, Security()) as client:
            store = service_store([server.address])
            store.begin(query)
            sink = store.sink(attempt_of(query), 1)
            sink.write(0, batch_of(1, 2, 3))
            (block,) = sink.commit()
            open_attempt = attempt_of(query, 1)
            assert client.call("reserve", ReserveBytes(open_attempt, 8), Granted).size_bytes == 8

            fake = stranger(query)
            theirs = replace(open_attempt, task=TaskId(StageId(fake, 0), 1))
            data = pa.py_buffer(b"12345678")
            calls: list[tuple[str, Any]] = [
                ("reserve", ReserveBytes(theirs, 8)),
                ("reserve", ReserveBytes(attempt_of(fake, 2), 8)),
                ("push", push_body(PushChunks(theirs, (PushedChunk(0, 0, 8, checksum_of(data)),)), [data])),
                ("commit", CommitAttempt(theirs, ())),
                ("abort", theirs),
                ("release", fake),
            ]
            held = server.server_state.health().held_bytes
            for action, message in calls:
                with pytest.raises(PeerRefused, match="has not begun here") as refused:
                    client.call(action, message, Granted | Ack)
                assert refused.value.code == "SHUFFLE_UNKNOWN_QUERY"
            kept = client.call("keep", KeepAlive("another application", (fake,)), Kept)
            assert kept.expired == ()
            assert server.server_state.health().applications == 1
            assert server.server_state.health().held_bytes == held
            assert problem_of(client, block, fake) is Kind.MISSING

            assert [batch.num_rows for batch in store.read(block)] == [3]
            store.close()

    def test_keys_are_kept_over_a_restart(self, tmp_path: Path) -> None:
        query = QueryId.new()
        settings = ShuffleServerSettings((tmp_path,), 2**26)
        before = ShuffleServerState("server", settings)
        before.keep_alive(KeepAlive("application", (query,)))
        before.close()
        after = ShuffleServerState("server", settings)
        try:
            with pytest.raises(QueryError, match="has not begun here"):
                after.reserve(attempt_of(without_key(query)), 8)
            with pytest.raises(QueryError, match="has not begun here"):
                after.release(without_key(query))
            assert after.reserve(attempt_of(query), 8) == 8
        finally:
            after.close()


def problem_of(client: Client, block: Block, query: QueryId) -> Kind:
    """How the request for a block of `query` is answered."""
    task = replace(block.attempt.task, stage=replace(block.attempt.task.stage, query=query))
    asked = replace(block, attempt=replace(block.attempt, task=task))
    chunk = next(iter(client.flight.do_get(flight.Ticket(encode(BlockRequest((asked,)))))))
    header, _ = unframe(chunk.data, chunk.app_metadata)
    return header.kind


class TestWorker:
    @pytest.fixture
    def daemon(self, tmp_path: Path) -> Iterator[Daemon]:
        settings = DaemonSettings(
            host="127.0.0.1",
            port=0,
            cores=1,
            slots=4,
            memory_bytes=8 << 30,  # this process is much larger than a worker
            directories=(tmp_path,),
            shuffle=ShuffleSettings.of(Config.read({})),
        )
        running = Daemon(settings, SECURITY)
        yield running
        running.close()

    @STRANGERS
    def test_every_call_about_a_query_needs_its_key(
        self, daemon: Daemon, stranger: Callable[[QueryId], QueryId]
    ) -> None:
        query = QueryId.new()
        fake = stranger(query)

        def task_of(query: QueryId, number: int, rows: int = 3) -> Any:
            task = stage_task(numbers(rows), Output(Partitioning.SINGLE), number)
            return replace(task, attempt=attempt_of(query, number))

        with Client(daemon.address, SECURITY) as mine, Client(daemon.address, SECURITY) as other:
            for client, name in ((mine, "mine"), (other, "other")):
                client.greet(Hello(Identity.of_this_process(name), name))
            assert mine.call("reserve", Reserve("mine", attempt_of(query))) == Ack(True)
            mine.call("run", task_of(query, 0))
            (outcome,) = mine.call("watch", Watch("mine", 0, 10.0), News).outcomes
            assert isinstance(outcome.end, TaskDone)
            (block,) = outcome.end.blocks
            running = task_of(query, 1, 10**15)
            assert mine.call("reserve", Reserve("mine", running.attempt)) == Ack(True)
            mine.call("run", running)
            assert mine.call("reserve", Reserve("mine", attempt_of(query, 2))) == Ack(True)

            theirs = attempt_of(fake, 1)
            calls: list[tuple[str, Any]] = [
                ("reserve", Reserve("other", attempt_of(fake, 3))),
                ("run", task_of(fake, 2)),
                ("perform", task_of(fake, 3)),
                ("await", Await(theirs, 0.0)),
                ("feed", SplitBatch(theirs, 0, 0, (), 0, True)),
                ("cancel", theirs),
                ("release", fake),
            ]
            for action, message in calls:
                with pytest.raises(PeerRefused, match="is not on"):
                    other.call(action, message)
            ticket = flight.Ticket(RESULT_TICKET + encode(theirs))
            with pytest.raises(flight.FlightError, match="is not on"):
                other.flight.do_get(ticket).read_all()
            with pytest.raises(flight.FlightError, match="is not on"):
                put(other, Push("other", attempt_of(fake, 4), 1))
            with pytest.raises(flight.FlightError, match="is not on"):
                put(other, Push("", attempt_of(fake, 4), 1))
            assert problem_of(other, block, fake) is Kind.MISSING

            assert [batch.num_rows for batch in driver_reader(SECURITY).read(block)] == [3]
            mine.call("cancel", running.attempt)
            mine.call("release", query)
            with pytest.raises(BlockMissing):
                list(driver_reader(SECURITY).read(block))


def put(client: Client, push: Push) -> None:
    batch = batch_of(1)
    writer, reader = client.flight.do_put(flight.FlightDescriptor.for_command(encode(push)), batch.schema)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        reader.read()
