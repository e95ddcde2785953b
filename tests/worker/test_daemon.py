# SPDX-License-Identifier: Apache-2.0
"""A worker daemon: its doors, its promises to several drivers, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from helpers.waiting import PATIENCE_SECONDS, eventually
from volley.batches import slice_batch
from volley.cli.main import cli
from volley.cluster import health_of
from volley.config import Config
from volley.errors import ConfigError, QueryError
from volley.ids import QueryId
from volley.plan.expressions import SortKey
from volley.plan.nodes import DataFile, FileScan, Partitioning, Sort, Union
from volley.rpc.codec import decode, encode
from volley.rpc.control import (
    RESULT_TICKET,
    Ack,
    AskHealth,
    Await,
    Bye,
    Drain,
    News,
    Refused,
    Reserve,
    Watch,
)
from volley.rpc.handshake import Hello, Identity, hash_fingerprint, read_welcome, to_json
from volley.rpc.messages import TaskDone, TaskFailure
from volley.rpc.start import encode_start
from volley.security import Security
from volley.shuffle.factory import ShuffleSettings
from volley.shuffle.memory import MemoryStore
from volley.stages.graph import Output
from volley.testing.contracts import NUMBER, attempt_id, batch_of, numbers, result_task, stage_task
from volley.user_token import token_file_for
from volley.worker.budget import WorkerBudget
from volley.worker.daemon import Daemon, DaemonSettings
from volley.worker.drivers import Drivers, UnknownDriver
from volley.worker.slots import Slots

PLAIN = Security()
SINGLE = Output(Partitioning.SINGLE)


class Caller:
    """A driver by hand."""

    def __init__(self, address: str, name: str = "driver", security: Security = PLAIN) -> None:
        self.name = name
        self._client = security.connect(address)

    def raw(self, action: str, body: bytes) -> bytes:
        options = flight.FlightCallOptions(timeout=PATIENCE_SECONDS)
        (reply,) = self._client.do_action(flight.Action(action, body), options)
        return bytes(reply.body.to_pybytes())

    def ask(self, action: str, message: Any) -> Any:
        return decode(self.raw(action, encode(message)))

    def hello(self, *queries: str) -> None:
        words = Hello(Identity.of_this_process(self.name), self.name, queries)
        welcome = read_welcome(self.raw("hello", to_json(words)))
        assert welcome is not None
        assert welcome.refusal == ""

    def run(self, task: Any) -> None:
        assert self.ask("reserve", Reserve(self.name, task.attempt)) == Ack(True)
        assert self.ask("run", task) == Ack(True)

    def outcome(self, after: int = 0) -> Any:
        outcomes: list[Any] = []

        def is_told() -> bool:
            news = self.ask("watch", Watch(self.name, after, 10.0))
            assert isinstance(news, News), news
            outcomes.extend(news.outcomes)
            return bool(outcomes)

        eventually(is_told)
        return outcomes[0]


# Of tests in which a lease expires. In the others it must not, however busy the machine is.
SHORT_LEASE_SECONDS = 3.0


def settings_of(
    directory: Path, host: str = "127.0.0.1", port: int = 0, lease_seconds: float = PATIENCE_SECONDS
) -> DaemonSettings:
    return DaemonSettings(
        host=host,
        port=port,
        cores=1,
        slots=1,
        memory_bytes=8 << 30,  # this process is much larger than a worker
        directories=(directory,),
        shuffle=ShuffleSettings.of(Config.read({})),
        lease_seconds=lease_seconds,
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(settings_of(tmp_path), PLAIN)
    yield daemon
    daemon.close()


@pytest.fixture
def caller(daemon: Daemon) -> Caller:
    caller = Caller(daemon.address)
    caller.hello()
    return caller


def health(daemon: Daemon) -> Any:
    found = health_of(daemon.address, PLAIN)
    assert found is not None
    return found


def test_the_only_task_of_a_wide_worker_has_the_memory_of_all_its_slots(tmp_path: Path) -> None:
    settings = replace(settings_of(tmp_path), cores=16, slots=16, memory_bytes=1 << 30)
    daemon = Daemon(settings, PLAIN)
    try:
        caller = Caller(daemon.address)
        caller.hello()
        backwards = Sort((SortKey(NUMBER, False, False),), True, numbers(8_000_000))
        assert daemon.budget.operators_bytes // 16 < 8_000_000 * 8, "it would not fit into a share"
        caller.run(stage_task(backwards, SINGLE, 0))
        done = caller.outcome().end
        assert isinstance(done, TaskDone), done
        assert done.rows == 8_000_000
        assert done.metrics.operator_spilled_bytes == 0
    finally:
        daemon.close()


def test_a_task_starts_without_a_reservation_if_a_slot_is_free(caller: Caller) -> None:
    first, second = (result_task(numbers(10**7), task) for task in range(2))
    start = [decode(caller.raw("start", encode_start(caller.name, task, False))) for task in (first, second)]
    assert start == [Ack(True), Ack(False)]
    caller.ask("cancel", first.attempt)
    reply = decode(caller.raw("start", encode_start(caller.name, second, True)))
    assert isinstance(reply, Refused)
    assert reply.code == "NOT_RESERVED"
    assert caller.ask("reserve", Reserve(caller.name, second.attempt)) == Ack(True)
    assert decode(caller.raw("start", encode_start(caller.name, second, True))) == Ack(True)
    stranger = decode(caller.raw("start", encode_start("stranger", second, False)))
    assert isinstance(stranger, Refused)
    assert stranger.code == "UNKNOWN_DRIVER"


def test_an_attempt_of_a_spark_task_starts_with_its_plan_inside_or_beside(caller: Caller) -> None:
    inside, beside = (stage_task(numbers(10), SINGLE, task) for task in range(2))
    for task, body in ((inside, encode(inside)), (beside, encode_start("", beside, True))):
        assert decode(caller.raw("perform", body)) == Ack(True)
        done = caller.ask("await", Await(task.attempt, 10.0))
        assert isinstance(done, TaskDone), done
        assert (done.attempt, done.rows) == (task.attempt, 10)


class TestCalls:
    def test_health_says_what_it_does(self, daemon: Daemon, caller: Caller) -> None:
        idle = health(daemon)
        assert (idle.status, idle.running, idle.slots, idle.drivers) == ("serving", 0, 1, 1)
        caller.run(result_task(numbers(10**15)))
        assert health(daemon).running == 1
        caller.ask("cancel", result_task(numbers(1)).attempt)
        assert health(daemon).running == 0

    def test_an_outcome_is_told_until_it_is_acknowledged(self, daemon: Daemon, caller: Caller) -> None:
        caller.run(stage_task(numbers(10), SINGLE, 0))
        first = caller.outcome()
        assert isinstance(first.end, TaskDone)
        # The answer may have been lost on its way: nothing was acknowledged, so it is told again.
        assert caller.outcome() == first
        assert caller.ask("watch", Watch(caller.name, first.number, 0.05)) == News((), False)

    def test_news_comes_at_once(self, daemon: Daemon, caller: Caller) -> None:
        caller.run(stage_task(numbers(10**15), SINGLE, 0))
        heard: list[Any] = []
        waiting = threading.Thread(target=lambda: heard.append(caller.outcome()))
        waiting.start()
        Caller(daemon.address).ask("cancel", attempt_id(0))
        waiting.join(PATIENCE_SECONDS)
        assert isinstance(heard[0].end, TaskFailure)

    def test_an_unknown_action_is_refused_without_a_traceback(self, caller: Caller) -> None:
        for action, body in [
            ("dance", encode(AskHealth())),
            ("run", encode(AskHealth())),
            ("run", b"not json"),
            ("run", b'{"version": 1, "message": {"$": "TaskSpec"}}'),
            ("hello", b"{}"),
        ]:
            reply = decode(caller.raw(action, body))
            assert isinstance(reply, Refused)
            assert "Traceback" not in reply.message
            assert ".py" not in reply.message

    @pytest.mark.parametrize("form", ["[", '{"a":', '{"version": 1, "message": ['])
    def test_a_ticket_that_nests_too_deeply_is_refused_without_a_traceback(
        self, daemon: Daemon, form: str
    ) -> None:
        deep = (form * 100_000).encode()
        for ticket in (deep, RESULT_TICKET + deep):
            with pytest.raises(flight.FlightError, match="not a message") as refused:
                PLAIN.connect(daemon.address).do_get(flight.Ticket(ticket)).read_all()
            assert "Traceback" not in str(refused.value)

    def test_another_protocol_version_is_refused(self, caller: Caller) -> None:
        body = encode(AskHealth()).replace(b'"version": 1', b'"version": 99')
        reply = decode(caller.raw("health", body))
        assert isinstance(reply, Refused)
        assert "protocol 99" in reply.message
        assert "speaks 1" in reply.message

    def test_rows_of_an_attempt_that_is_not_there_are_an_error(self, daemon: Daemon) -> None:
        client = PLAIN.connect(daemon.address)
        for ticket in (RESULT_TICKET + encode(attempt_id(7)), RESULT_TICKET + encode(QueryId("q")), b"x"):
            with pytest.raises((flight.FlightServerError, ValueError)):
                client.do_get(flight.Ticket(ticket)).read_all()

    def test_a_drained_worker_takes_nothing_new(self, daemon: Daemon, caller: Caller) -> None:
        caller.run(stage_task(numbers(10), SINGLE, 0))
        assert caller.ask("drain", Drain()) == Ack(True)
        assert health(daemon).status == "draining"
        assert caller.ask("reserve", Reserve(caller.name, attempt_id(1))) == Ack(False)
        assert isinstance(caller.outcome().end, TaskDone)
        assert caller.ask("watch", Watch(caller.name, 1, 0.05)).draining

    def test_a_port_that_is_taken_is_an_error(self, daemon: Daemon, tmp_path: Path) -> None:
        taken = int(daemon.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="cannot listen on"):
            Daemon(settings_of(tmp_path, port=taken), PLAIN)

    def test_another_name_for_loopback_works(self, tmp_path: Path) -> None:
        daemon = Daemon(settings_of(tmp_path, host="::1"), PLAIN)
        assert daemon.address.startswith("[::1]:")
        assert health(daemon).status == "serving"
        daemon.close()


class TestDrivers:
    def test_a_stranger_cannot_reserve(self, daemon: Daemon) -> None:
        reply = Caller(daemon.address, "stranger").ask("reserve", Reserve("stranger", attempt_id()))
        assert isinstance(reply, Refused)
        assert reply.code == "UNKNOWN_DRIVER"

    def test_a_driver_that_says_nothing_is_forgotten_with_all_it_left(self, tmp_path: Path) -> None:
        daemon = Daemon(settings_of(tmp_path, lease_seconds=SHORT_LEASE_SECONDS), PLAIN)
        try:
            caller = Caller(daemon.address)
            caller.hello()
            caller.run(stage_task(numbers(1000), SINGLE, 0))
            assert isinstance(caller.outcome().end, TaskDone)
            caller.run(result_task(numbers(10**15)))
            assert health(daemon).held_bytes > 0
            eventually(lambda: health(daemon).drivers == 0)
            left = health(daemon)
            assert (left.running, left.held_bytes) == (0, 0)
            # It was only paused, and finds that it has to start over.
            assert isinstance(caller.ask("watch", Watch(caller.name, 0, 0.1)), Refused)
        finally:
            daemon.close()

    def test_asking_for_news_keeps_a_driver(self) -> None:
        async def story() -> None:
            drivers = Drivers(Slots("w", 1, 1, MemoryStore("w")), lease_seconds=60.0)
            await drivers.hello("asks", frozenset())
            await drivers.hello("is silent", frozenset())
            await drivers.watch("asks", 0, 0.0)
            heard = time.monotonic()
            await drivers.expire(heard)
            assert len(drivers) == 2
            while time.monotonic() == heard:
                await asyncio.sleep(0)
            await drivers.watch("asks", 0, 0.0)
            await drivers.expire(heard + 60.0)
            assert len(drivers) == 1
            await drivers.watch("asks", 0, 0.0)

        asyncio.run(story())

    def test_goodbye_frees_everything_of_that_driver_alone(self, daemon: Daemon, caller: Caller) -> None:
        other = Caller(daemon.address, "other")
        other.hello()
        caller.run(stage_task(numbers(1000), SINGLE, 0))
        caller.outcome()
        mine = health(daemon).held_bytes
        other.run(_of_query(stage_task(numbers(1000), SINGLE, 0), "theirs"))
        other.outcome()
        assert health(daemon).held_bytes == 2 * mine
        caller.ask("bye", Bye(caller.name))
        assert health(daemon).held_bytes == mine

    def test_hello_again_ends_what_ran_and_keeps_what_is_named(self, daemon: Daemon, caller: Caller) -> None:
        caller.run(_of_query(stage_task(numbers(1000), SINGLE, 0), "kept"))
        assert isinstance(caller.outcome().end, TaskDone)
        kept = health(daemon).held_bytes
        caller.run(_of_query(stage_task(numbers(1000), SINGLE, 0), "over"))
        assert isinstance(caller.outcome(1).end, TaskDone)
        caller.run(_of_query(stage_task(numbers(10**15), SINGLE, 1), "kept"))
        caller.hello("kept")
        after = health(daemon)
        assert (after.running, after.held_bytes) == (0, kept)
        # The old attempt is not news for the driver as it is now.
        assert caller.ask("watch", Watch(caller.name, 0, 0.1)).outcomes == ()


def _endless_scan(file: Path) -> Any:
    """A task that has begun to read `file` and does not end."""
    status = file.stat()
    data = DataFile(str(file), status.st_size, status.st_mtime_ns // 1_000_000)
    scan = FileScan("parquet", (data,), (NUMBER,), (), ())
    return stage_task(Union((NUMBER,), (numbers(10**15), scan)), SINGLE, 0)


def _of_query(task: Any, query: str) -> Any:
    attempt = task.attempt
    stage = replace(attempt.task.stage, query=QueryId(query))
    return replace(task, attempt=replace(attempt, task=replace(attempt.task, stage=stage)))


class TestSlots:
    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))

    def test_a_reservation_expires(self) -> None:
        async def story() -> None:
            slots = Slots("w", 1, 1, MemoryStore("w"), reservation_seconds=0.05)
            assert slots.reserve(attempt_id(0))
            assert not slots.reserve(attempt_id(1))
            await asyncio.sleep(0.1)
            assert slots.reserve(attempt_id(1))
            with pytest.raises(QueryError, match="no slot"):
                slots.start(stage_task(numbers(1), SINGLE, 0))

        self.run(story())

    def test_a_duplicate_is_refused_at_every_step(self) -> None:
        async def story() -> None:
            slots = Slots("w", 5, 1, MemoryStore("w"))
            task = stage_task(numbers(1), SINGLE, 0)
            assert slots.reserve(task.attempt)
            assert not slots.reserve(task.attempt)
            running = slots.start(task)
            with pytest.raises(QueryError):
                slots.start(task)
            assert not slots.reserve(task.attempt)
            assert isinstance(await running.done(), TaskDone)
            assert not slots.reserve(task.attempt)
            await slots.release(QueryId("q"))
            assert not slots.reserve(task.attempt)

        self.run(story())

    def test_run_needs_a_driver_that_is_still_known(self) -> None:
        async def story() -> None:
            drivers = Drivers(Slots("w", 1, 1, MemoryStore("w")))
            await drivers.hello("d", frozenset())
            task = stage_task(numbers(1), SINGLE, 0)
            assert drivers.reserve("d", task.attempt)
            await drivers.bye("d")
            with pytest.raises(UnknownDriver):
                drivers.run(task)

        self.run(story())


class TestParts:
    def test_a_batch_is_cut_to_messages(self) -> None:
        batch = batch_of(*range(1000))
        parts = list(slice_batch(batch, 1000))
        assert [value for part in parts for value in part.column(0).to_pylist()] == list(range(1000))
        assert max(part.nbytes for part in parts) <= 1000
        assert list(slice_batch(batch, 1 << 20)) == [batch]
        assert [part.num_rows for part in slice_batch(batch_of(1, 2), 1)] == [1, 1]

    def test_the_budget_adds_up(self) -> None:
        for total in (64 << 20, 1 << 30, 100 << 30):
            budget = WorkerBudget.divide(total, 0.3)
            assert budget.shuffle_bytes + budget.operators_bytes + budget.headroom_bytes == total
            assert min(budget.shuffle_bytes, budget.operators_bytes, budget.headroom_bytes) > 0
            assert budget.shuffle_bytes == int(total * 0.3)

    def test_the_fingerprint_is_the_same_in_another_process(self) -> None:
        code = "from volley.rpc.handshake import hash_fingerprint; print(hash_fingerprint())"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert other.stdout.strip() == hash_fingerprint()


class TestCommand:
    """`volley worker` as a process."""

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "volley.cli.main", "worker", "--memory", "256m", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def test_it_prints_its_budget_drains_and_leaves_nothing(self, tmp_path: Path) -> None:
        # Memory is so small that everything goes to disk.
        small = ["--set", "spark.volley.shuffle.spillThreshold=0"]
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        few_files = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, most_files))
        process = self.start("--dir", str(tmp_path), "--cores", "1", *small, preexec_fn=few_files)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1].rstrip(":")
            budget = process.stdout.readline()
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most_files, most_files)
            assert all(part in budget for part in ("256.0 MB", "operators", "shuffle 76.8 MB", "headroom"))
            # It was given no token, so it asks for that of this user.
            token_file = process.stdout.readline().split()[2]
            with pytest.raises(flight.FlightUnauthenticatedError):
                Caller(address).hello()
            assert token_file == token_file_for([address], "", {})
            caller = Caller(address, security=Security.read(token_file))
            caller.hello()
            caller.run(stage_task(numbers(100_000), SINGLE, 0))
            assert isinstance(caller.outcome().end, TaskDone)
            caller.run(stage_task(numbers(10**15), SINGLE, 1))
            process.send_signal(signal.SIGTERM)
            eventually(lambda: caller.ask("watch", Watch(caller.name, 1, 0.05)).draining)
            # It waits for what runs, and for those who still want its blocks.
            assert process.poll() is None
            caller.ask("cancel", attempt_id(1))
            caller.ask("release", QueryId("q"))
            assert process.wait(PATIENCE_SECONDS) == 0
            assert process.stderr is not None
            # What it logs is how it went, and no trouble.
            lines = process.stderr.read().splitlines()
            trouble = [line for line in lines if " INFO volley." not in line]
            assert len(trouble) == 1, lines
            assert "refused" in trouble[0]
            assert "no token" in trouble[0]
            assert list(tmp_path.iterdir()) == []
        finally:
            process.kill()
            process.communicate()

    @pytest.mark.slow
    def test_a_second_signal_ends_it_at_once_and_killing_leaves_nothing(self, tmp_path: Path) -> None:
        spill, temporary = tmp_path / "spill", tmp_path / "temporary"
        spill.mkdir()
        temporary.mkdir()
        file = tmp_path / "numbers.parquet"
        pq.write_table(pa.table({"n": [1, 2, 3]}), file)
        scanning = _endless_scan(file)
        environment = os.environ | {"TMPDIR": str(temporary)}
        workers = [self.start("--json", "--no-token", "--dir", str(spill), env=environment) for _ in range(2)]
        try:
            callers = []
            for process in workers:
                assert process.stdout is not None
                callers.append(Caller(json.loads(process.stdout.readline())["address"]))
                callers[-1].hello()
                callers[-1].run(scanning)
            hurried, killed = workers
            # The scan has made its links, which are files too.
            eventually(lambda: len(list(spill.rglob("*.parquet"))) == 2)
            hurried.terminate()
            eventually(lambda: callers[0].ask("watch", Watch("driver", 0, 0.05)).draining)
            hurried.terminate()
            assert hurried.wait(PATIENCE_SECONDS) == 0
            assert hurried.stderr is not None
            assert "WARNING volley.cli.daemon_options --no-token: everybody" in hurried.stderr.read()
            killed.kill()
            killed.wait()
            eventually(lambda: [*spill.iterdir(), *temporary.iterdir()] == [])
        finally:
            for process in workers:
                process.kill()
                process.communicate()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--dir", "/nowhere/at/all"], "is not a writable directory"),
            (["--host", "0.0.0.0", "--advertise", "here"], "no token or no TLS"),
            (["--set", "spark.volley.shuffle.compression=gzip"], "expected one of none, lz4, zstd, auto"),
        ],
        ids=["directory", "network", "option"],
    )
    def test_invalid_options_are_reported(self, arguments: list[str], said: str) -> None:
        result = CliRunner().invoke(cli, ["worker", *arguments])
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)
