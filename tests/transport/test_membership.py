# SPDX-License-Identifier: Apache-2.0
"""Workers that are found by DNS or in a file: they join and leave while a query runs, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.recovery import NUMBER, exchanged, numbers
from helpers.waiting import eventually
from volley.cluster import LocalCluster
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import Event, EventLog, StageFinished, TaskFailed, TaskStarted
from volley.membership import Membership, parse_members, resolve_option
from volley.observe.stage_reports import stage_reports
from volley.plan.nodes import Aggregate, Partitioning
from volley.stages.cut import cut
from volley.testing.limits import UNMERGED
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport

KEY = "spark.volley.shuffle.service"


def write(path: Path, *addresses: str) -> None:
    """Replace the file as a whole."""
    draft = path.with_suffix(".new")
    draft.write_text("# workers\n\n" + "\n".join(addresses) + "\n")
    draft.replace(path)


def test_a_file_is_read_again_and_what_is_half_written_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    found = Membership(["here:1", f"file:{path}"])
    assert found.may_change
    assert found.addresses() == ("here:1",)
    assert "No such file" in found.problems()[0]
    write(path, "a:1", "here:1", "b:2")
    assert found.addresses() == ("here:1", "a:1", "b:2")
    assert not found.problems()
    path.write_text("a:1\nb")
    assert found.addresses() == ("here:1", "a:1", "b:2")
    path.unlink()
    assert found.addresses() == ("here:1", "a:1", "b:2")
    write(path)
    assert found.addresses() == ("here:1",)


def test_a_name_stands_for_all_its_addresses_and_is_asked_again() -> None:
    answers: list[list[str] | OSError] = [["10.0.0.1", "::1"], ["10.0.0.2"], OSError("no answer")]
    now = [0.0]

    def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("volley-worker", 7070)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    found = Membership(["dns:volley-worker:7070"], resolve, lambda: now[0])
    assert found.addresses() == found.addresses() == ("10.0.0.1:7070", "[::1]:7070")
    now[0] += 5
    assert found.addresses() == ("10.0.0.2:7070",)
    now[0] += 5
    # An outage of DNS takes nobody away.
    assert found.addresses() == ("10.0.0.2:7070",)
    assert found.problems() == ("dns:volley-worker:7070: no answer",)


def test_members_are_checked_and_plain_addresses_are_left_alone() -> None:
    assert parse_members("a:1, dns:b:2,file:/c,a:1") == ("a:1", "dns:b:2", "file:/c")
    for wrong in ("a", "dns:a", "file:relative", "ftp:/a", "a:b:1"):
        with pytest.raises(ValueError, match="expected host:port, dns:name:port or file:/path"):
            parse_members(wrong)
    assert resolve_option({KEY: "a:1"}, KEY) == {KEY: "a:1"}
    assert resolve_option({KEY: "wrong"}, KEY) == {KEY: "wrong"}
    assert "127.0.0.1:7" in resolve_option({KEY: "dns:localhost:7"}, KEY)[KEY].split(",")


@pytest.mark.slow
def test_a_worker_takes_the_place_of_another_between_two_stages(tmp_path: Path) -> None:
    """The first leaves the list after it ran the first stage. The second joins, and reads what the first one holds."""
    path = tmp_path / "workers"
    with LocalCluster(1, cores=1, memory="256m") as cluster:
        first = cluster.addresses[0]
        write(path, first)
        fleet = Fleet([f"file:{path}"], cluster.security, 5.0)
        try:
            fleet.wait()
            transport = FlightTransport(fleet)
            workers: list[str] = []

            def listen(event: Event) -> None:
                if isinstance(event, TaskStarted):
                    workers.append(event.worker)
                if isinstance(event, StageFinished) and event.stage.stage == 0:
                    (second,) = cluster.add()
                    write(path, second.address)
                    # The fleet looks by itself; asking it to is only faster.
                    fleet.look_up()
                    eventually(lambda: [worker.name for worker in transport.workers()] == [second.address])

            plan = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(Partitioning.HASH, numbers(10_000)))
            log = EventLog(listen)
            options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=log)
            with execute(cut(plan, 2, UNMERGED), transport, options) as stream:
                rows = sorted(value for batch in stream for value in batch.column(0).to_pylist())
            second = cluster.addresses[1]
            assert rows == list(range(10_000))
            assert workers[0] == first
            assert set(workers[1:]) == {second}
            assert not [event for event in log.events if isinstance(event, TaskFailed)]
            assert [stage.recomputed_tasks for stage in stage_reports(log.events)] == [0, 0]
            # Once no query needs what it holds, nobody knows the first one any more.
            eventually(lambda: [peer.address for peer in fleet.peers] == [second])
        finally:
            fleet.close()


@pytest.mark.slow
def test_a_worker_that_joins_gets_tasks_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    with LocalCluster(1, cores=1, memory="256m") as cluster:
        write(path, *cluster.addresses)
        fleet = Fleet([f"file:{path}"], cluster.security, 5.0)
        try:
            fleet.wait()
            transport = FlightTransport(fleet)
            workers: dict[int, set[str]] = {}

            def listen(event: Event) -> None:
                if isinstance(event, TaskStarted):
                    workers.setdefault(event.attempt.task.stage.stage, set()).add(event.worker)
                if isinstance(event, StageFinished) and event.stage.stage == 0:
                    cluster.add()
                    write(path, *cluster.addresses)
                    eventually(lambda: len(transport.workers()) == 2)

            plan = Aggregate((NUMBER,), (), (), (NUMBER,), exchanged(Partitioning.HASH, numbers(10_000)))
            options = RunOptions(timeout_seconds=60, attempts=3, limits=UNMERGED, events=EventLog(listen))
            with execute(cut(plan, 2, UNMERGED), transport, options) as stream:
                assert sum(batch.num_rows for batch in stream) == 10_000
            assert workers == {0: {cluster.addresses[0]}, 1: set(cluster.addresses)}
        finally:
            fleet.close()
