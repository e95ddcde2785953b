# SPDX-License-Identifier: Apache-2.0
"""The chaos suite repeats a seed, strikes when it says, and finds no problem."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from helpers.waiting import eventually
from volley.testing.chaos.agent import Trouble, hits, inject_into_children, send
from volley.testing.chaos.arena import Arena
from volley.testing.chaos.campaign import Campaign
from volley.testing.chaos.faults import OF_NETWORK, Fault, Kind, Moment, damage_one, spill_files
from volley.testing.chaos.injections import (
    disk_injection,
    inner_injection,
    is_dead,
    kill_injection,
    link_injection,
    stop_injection,
)
from volley.testing.chaos.jobs import Outcome
from volley.testing.chaos.objects import FolderObjects
from volley.testing.chaos.report import Tally
from volley.testing.chaos.run import Countdown
from volley.testing.chaos.schedule import Round, draw_round, shrink_round
from volley.testing.chaos.timeline import Timeline
from volley.testing.fuzz.choices import Choices
from volley.testing.proxy import LossyProxy

POINTS = ("hello", "run")


def test_a_seed_gives_the_same_round_and_a_round_can_be_shrunk() -> None:
    kinds = tuple(Kind)

    def draw(choices: Choices) -> Round:
        return draw_round(choices, kinds, POINTS, has_others=True)

    assert draw(Choices("7 1")) == draw(Choices("7 1"))
    assert len({str(draw(Choices(f"7 {n}"))) for n in range(20)}) > 15

    def fails(plan: Round) -> bool:
        return any(fault.kind is Kind.KILL for fault in plan.faults)

    failing = next(plan for n in range(100) if fails(plan := draw(Choices(f"8 {n}"))))
    least = shrink_round(failing, fails, 200)
    assert [fault.kind for fault in least.faults] == [Kind.KILL]
    assert len(least.queries) == least.clients == 1
    assert least.others == ()
    assert shrink_round(failing, fails, 1) != least
    # One that fails without any fault says so.
    assert shrink_round(failing, lambda plan: True, 1).faults == ()


def test_a_fault_strikes_at_its_message_or_query() -> None:
    third = Fault(Kind.CUT, 0, Moment("run", 3))
    second, last = (Fault(Kind.CUT, 0, Moment(count=count)) for count in (2, 30))
    struck: list[Fault] = []
    countdown = Countdown((third, second, last), 5, struck.append)
    for point in ("run", "reserve", "run", "hello"):
        countdown(point)
    assert struck == []
    countdown("run")
    countdown("run")
    assert struck == [third]
    for number in (1, 5, 2):
        countdown("", number)
    # A shrunk round has fewer queries: what strikes at later ones strikes at the last one.
    assert struck == [third, last, second]


def test_what_is_due_is_called_in_its_order() -> None:
    called: list[int] = []
    with Timeline() as timeline:
        timeline.after(0.05, lambda: called.append(2))
        timeline.after(0.0, lambda: called.append(1))
        timeline.after(600.0, lambda: called.append(3))
        eventually(lambda: called == [1, 2])
    assert called == [1, 2]


@pytest.fixture
def echo() -> Iterator[tuple[LossyProxy, Callable[[], socket.socket]]]:
    """A proxy before a server that answers what it gets, and what connects to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                while data := connection.recv(100):
                    connection.sendall(data)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        proxy = LossyProxy(listener.getsockname()[1])

        def connect() -> socket.socket:
            made = socket.create_connection(("127.0.0.1", int(proxy.address.rpartition(":")[2])), timeout=10)
            made.sendall(b"one")
            assert made.recv(10) == b"one"
            return made

        yield proxy, connect
        proxy.close()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", OF_NETWORK)
def test_a_fault_of_a_link_counts_if_it_meets_data(
    echo: tuple[LossyProxy, Callable[[], socket.socket]], kind: Kind
) -> None:
    proxy, connect = echo
    idle = link_injection(proxy, kind, random.Random(1))
    idle.begin()
    assert not idle.has_hit()
    idle.heal()
    with connect() as connection:
        injection = link_injection(proxy, kind, random.Random(1))
        assert injection.begin()
        with suppress(OSError):
            connection.sendall(b"two")
        eventually(injection.has_hit)
        injection.heal()
    assert not link_injection(proxy, kind, random.Random(1)).has_hit()


def test_a_stop_and_a_kill_count_if_the_process_has_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stop = stop_injection(process.pid)
        assert not stop.has_hit()
        assert stop.begin()
        eventually(stop.has_hit)
        stop.heal()
        eventually(lambda: not stop.has_hit())
        assert kill_injection(process.pid, lambda: None).begin()
        eventually(lambda: is_dead(process.pid))
        assert not kill_injection(process.pid, lambda: None).begin()


@pytest.mark.parametrize("kind", [Kind.FLIP, Kind.TRUNCATE])
def test_files_without_a_name_are_damaged(tmp_path: Path, kind: Kind) -> None:
    before = set(spill_files(os.getpid()))
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        file.write(bytes(1000))
        file.flush()
        mine = set(spill_files(os.getpid())) - before
        ((path, target),) = mine
        assert target.startswith(f"{tmp_path}/#")
        assert damage_one([path], kind, random.Random(3))
        file.seek(0)
        assert file.read() != bytes(1000)
    assert not damage_one([tmp_path / "gone"], kind, random.Random(3))


def test_a_spill_file_that_is_left_in_the_driver_is_a_leak(tmp_path: Path) -> None:
    spill = tmp_path / "volley-spill-1"
    spill.mkdir()
    with Arena("local", "memory", tmp_path / "arena") as arena:
        before = arena.leaks()
        with tempfile.TemporaryFile(dir=spill):
            (leak,) = set(arena.leaks()) - set(before)
        assert leak.startswith(f"{os.getpid()} has {spill}/")
        assert arena.leaks() == before


@pytest.mark.slow
def test_a_daemon_that_ends_by_itself_is_a_problem_and_a_killed_one_is_not(tmp_path: Path) -> None:
    with Arena("local", "service", tmp_path / "arena") as arena:
        first, second, _ = arena.daemons()
        injection = arena.inject(Fault(Kind.KILL, 0, Moment()), random.Random(1))
        assert injection is not None
        eventually(lambda: is_dead(first))
        assert arena.end(injection)
        arena.heal()
        assert arena.take_ended() == []
        assert first not in arena.daemons()
        os.kill(second, 9)
        eventually(lambda: is_dead(second))
        arena.heal()
        (ended,) = arena.take_ended()
        assert "ended with -9" in ended


def test_objects_that_disappear_are_not_damaged(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "query" / "task").mkdir(parents=True)
            (tmp_path / "query" / "task" / "object").touch()
            shutil.rmtree(tmp_path / "query")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        found = [path.name for _ in range(1000) for path in objects.paths()]
    finally:
        over.set()
        thread.join()
    assert set(found) <= {"object"}


LISTENER = """
import os, sys, time
for line in sys.stdin:
    try:
        os.pwrite(int(sys.argv[1]), b"x", 1 << 20)
        said = "written"
    except OSError as error:
        said = os.strerror(error.errno)
    memory = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    print(said, round(time.time() - time.clock_gettime(time.CLOCK_REALTIME)), memory, flush=True)
"""


def test_a_process_suffers_what_it_is_told(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as file, inject_into_children(tmp_path / "agent"):
        process = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[file.fileno()],
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> tuple[str, int, int]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            said, offset, memory = process.stdout.readline().rsplit(" ", 2)
            return said, int(offset), int(memory)

        try:
            assert ask()[:2] == ("written", 0)
            eio, full = inner_injection(process.pid, Kind.EIO), disk_injection(process.pid)
            assert eio.begin()
            assert not eio.has_hit()
            assert [ask()[0] for _ in range(4)] == ["Input/output error"] * 3 + ["written"]
            assert eio.has_hit()
            assert full.begin()
            assert ask()[0] == "File too large"
            assert full.has_hit()
            full.heal()
            assert ask()[0] == "written"
            assert hits(process.pid, Trouble.FULL) == 1
            assert send(process.pid, Trouble.BEHIND)
            assert ask()[1] == -7200
            assert send(process.pid, Trouble.MEMORY)
            assert ask()[2] > 400
            assert send(process.pid, Trouble.NONE)
            # One that arrives while the memory is being taken.
            for _ in range(10):
                assert send(process.pid, Trouble.MEMORY)
                assert send(process.pid, Trouble.NONE)
            assert ask()[1:] < (1, 400)
        finally:
            process.stdin.close()
            process.wait()
            process.stdout.close()
    # A process that does not listen would be ended by the signal.
    assert not send(os.getppid(), Trouble.EIO)
    assert "PYTHONPATH" not in os.environ or str(tmp_path) not in os.environ["PYTHONPATH"]


def test_runs_are_added_up() -> None:
    one = Tally(rounds=2, drawn=5, seconds=90.0, outcome=Outcome(answers=5, native=4))
    one.faults["flight", "memory", Kind.CUT] = 3
    one.outcome.failures["NO_WORKERS"] = 1
    one.outcome.replays["NATIVE_RUN_FAILED"] = 1
    both = Tally.from_dict(json.loads(json.dumps(one.to_dict()))) + one
    assert both.faults["flight", "memory", Kind.CUT] == 6
    assert "| cut connections | 6 | 6 |\n| all | 6 | 6 |" in str(both)
    assert str(both).endswith(
        "6 faults (of 10 that were drawn) in 4 rounds and 3 minutes: 10 right answers, 8 of them native;"
        " left to Spark: NATIVE_RUN_FAILED 2; failed cleanly: NO_WORKERS 2; 0 problems"
    )


@pytest.mark.slow
def test_a_minute_of_chaos(spark: SparkSession, tmp_path: Path) -> None:
    campaign = Campaign(spark, 11, tmp_path)
    for _ in campaign.run(60, [("flight", "memory"), ("local", "file"), ("spark", "service")]):
        pass
    assert campaign.tally.problems == []
    assert campaign.tally.faults.total() > 0
