# SPDX-License-Identifier: Apache-2.0
"""Commits of a shuffle service: once, fenced, and there after kill -9."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.service_calls import (
    QUERY,
    Calls,
    code_of,
    kept_value,
    logs,
    numbers,
    of_epoch,
    open_keeper,
    values,
    written,
)
from volley.errors import QueryError
from volley.rpc.shuffle_messages import KeepAlive, PushChunks, PushedChunk
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.proxy import LossyProxy
from volley.testing.services import serve_shuffle, service_store


@pytest.fixture
def server_state(tmp_path: Path) -> Iterator[ShuffleServerState]:
    with open_keeper(tmp_path) as found:
        yield found


LOST: dict[str, Callable[[ShuffleServerState], object]] = {
    "reserve": lambda server_state: server_state.health().held_bytes > 0,
    "push": lambda server_state: server_state.counts["chunks_pushed"] > 0,
    "commit": lambda server_state: server_state.counts["commits"] > 0,
}


@pytest.mark.parametrize("word", LOST)
def test_a_lost_acknowledgement_doubles_nothing(tmp_path: Path, word: str) -> None:
    with serve_shuffle(tmp_path) as (server,):
        proxy = LossyProxy(server.server.port, lambda: bool(LOST[word](server.server_state)))
        try:
            store = service_store([proxy.address], "q")
            block = written(store, batch_of(1, 2, 3))
            assert proxy.lost == 1
            assert values(store, block) == [1, 2, 3]
            counts = server.server_state.counts
            assert (counts["chunks_pushed"], counts["commits"]) == (1, 1)
            # The word was said twice and heard once.
            assert counts["chunks_repeated"] == (word == "push")
            # Nothing is promised any more: what is held is what was pushed.
            assert server.server_state.health().held_bytes == counts["bytes_pushed"]
            store.close()
        finally:
            proxy.close()


class TestFencing:
    def test_an_old_epoch_is_refused_on_every_call(self, server_state: ShuffleServerState) -> None:
        old, other = Calls(server_state, of_epoch(0)), Calls(server_state, of_epoch(0, 1))
        old.all()
        other.reserve()
        assert old.read() == ""
        Calls(server_state, of_epoch(1)).all()
        for call in (other.reserve, other.push, other.commit, old.commit):
            assert code_of(call) == "SHUFFLE_STALE_EPOCH"
        assert old.read().startswith("SHUFFLE_STALE_EPOCH")
        # What nobody may read any more is not kept either.
        assert server_state.health().attempts == 1

    def test_a_query_that_is_over_is_refused_on_every_call(self, server_state: ShuffleServerState) -> None:
        late = Calls(server_state, attempt_id())
        late.all()
        server_state.release(QUERY)
        again = Calls(server_state, attempt_id(attempt=1))
        for call in (again.reserve, again.push, again.commit, late.commit):
            assert code_of(call) == "SHUFFLE_QUERY_OVER"
        assert late.read().startswith("SHUFFLE_QUERY_OVER")

    def test_a_query_that_is_over_does_not_begin_again(self, server_state: ShuffleServerState) -> None:
        """The renewal of its lease was on its way when it was released."""
        server_state.release(QUERY)
        server_state.keep_alive(KeepAlive("application", (QUERY,)))
        assert server_state.empty

    def test_a_query_that_never_began_is_refused_on_every_call(
        self, server_state: ShuffleServerState
    ) -> None:
        unknown = Calls(server_state, attempt_id(query="unknown"))
        for call in (unknown.reserve, unknown.push, unknown.commit):
            assert code_of(call) == "SHUFFLE_UNKNOWN_QUERY"
        assert unknown.read().startswith("SHUFFLE_UNKNOWN_QUERY")

    def test_a_closed_attempt_takes_nothing_more(self, server_state: ShuffleServerState) -> None:
        committed, aborted = Calls(server_state, attempt_id(0)), Calls(server_state, attempt_id(1))
        committed.all()
        aborted.reserve()
        server_state.abort(aborted.attempt)
        for calls in (committed, aborted):
            for call in (calls.reserve, lambda calls=calls: calls.push(1)):
                assert code_of(call) == "SHUFFLE_ATTEMPT_CLOSED"
        assert code_of(aborted.commit) == "SHUFFLE_ATTEMPT_CLOSED"
        assert server_state.health().held_bytes == committed.data.data.size

    def test_of_two_that_race_the_first_commit_wins(self, server_state: ShuffleServerState) -> None:
        first, second = (
            Calls(server_state, attempt_id(attempt=0), 1),
            Calls(server_state, attempt_id(attempt=1), 2),
        )
        for calls in (first, second):
            calls.reserve()
            calls.push()
        first.commit()
        assert code_of(second.commit) == "SHUFFLE_COMMIT_LOST"
        assert first.read() == ""
        assert "SHUFFLE_BLOCK_MISSING" in second.read()
        # A third that began afterwards is made by somebody who has given the first up.
        Calls(server_state, attempt_id(attempt=2)).all()

    def test_an_attempt_does_not_pass_a_later_one(self, server_state: ShuffleServerState) -> None:
        Calls(server_state, attempt_id(attempt=1)).all()
        assert code_of(Calls(server_state, attempt_id(attempt=0)).reserve) == "SHUFFLE_COMMIT_LOST"

    def test_nothing_is_sent_without_room_for_it(self, server_state: ShuffleServerState) -> None:
        calls = Calls(server_state, attempt_id())
        assert code_of(calls.push) == "SHUFFLE_NOT_RESERVED"
        calls.reserve()
        calls.push()
        assert code_of(lambda: calls.push(1)) == "SHUFFLE_NOT_RESERVED"

    def test_a_commit_of_what_did_not_arrive_is_refused(self, server_state: ShuffleServerState) -> None:
        calls = Calls(server_state, attempt_id())
        calls.reserve()
        assert code_of(calls.commit) == "SHUFFLE_DAMAGED_ON_WAY"
        assert "SHUFFLE_BLOCK_MISSING" in calls.read()

    def test_who_lost_while_its_chunks_were_written_is_refused(
        self, server_state: ShuffleServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow, fast = (
            Calls(server_state, attempt_id(attempt=0), 1),
            Calls(server_state, attempt_id(attempt=1), 2),
        )
        for calls in (slow, fast):
            calls.reserve()
            calls.push()
        sync = os.fdatasync

        def overtaken(descriptor: int) -> None:
            monkeypatch.undo()
            fast.commit()
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", overtaken)
        assert code_of(slow.commit) == "SHUFFLE_COMMIT_LOST"
        assert kept_value(server_state, fast) == 2
        assert "SHUFFLE_BLOCK_MISSING" in slow.read()

    def test_two_that_each_won_somewhere_both_lose_and_the_next_one_wins(self, tmp_path: Path) -> None:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
        with open_keeper(tmp_path / "one") as one, open_keeper(tmp_path / "other") as other:
            attempts = [
                [Calls(server_state, attempt_id(attempt=number)) for server_state in (one, other)]
                for number in range(2)
            ]
            for calls in (*attempts[0], *attempts[1]):
                calls.reserve()
                calls.push()
            attempts[0][0].commit()
            attempts[1][1].commit()
            assert code_of(attempts[0][1].commit) == code_of(attempts[1][0].commit) == "SHUFFLE_COMMIT_LOST"
            for server_state in (one, other):
                Calls(server_state, attempt_id(attempt=2)).all()

    def test_two_chunks_under_one_number_are_refused(self, server_state: ShuffleServerState) -> None:
        calls = Calls(server_state, attempt_id())
        calls.reserve()
        calls.push()
        calls.reserve()
        calls.data = Calls(server_state, attempt_id(), 2).data
        assert code_of(calls.push) == "SHUFFLE_DAMAGED_ON_WAY"

    def test_a_commit_of_less_than_what_arrived_is_refused(self, server_state: ShuffleServerState) -> None:
        calls = Calls(server_state, attempt_id())
        for sequence in range(2):
            calls.reserve()
            calls.push(sequence)
        assert code_of(calls.commit) == "SHUFFLE_DAMAGED_ON_WAY"

    @pytest.mark.parametrize("change", [b"", b"more"], ids=["less", "more"])
    def test_a_push_of_another_length_than_it_says_is_refused(
        self, server_state: ShuffleServerState, change: bytes
    ) -> None:
        calls = Calls(server_state, attempt_id())
        calls.reserve()
        chunk = PushedChunk(0, 0, calls.data.data.size, calls.data.checksum)
        data = calls.data.data.to_pybytes()
        sent = pa.py_buffer(data + change if change else data[:-1])
        refused = code_of(lambda: server_state.push(PushChunks(calls.attempt, (chunk,)), sent))
        assert refused == "SHUFFLE_DAMAGED_ON_WAY"

    def test_a_chunk_that_was_damaged_on_its_way_is_refused(self, server_state: ShuffleServerState) -> None:
        calls = Calls(server_state, attempt_id())
        calls.reserve()
        broken = bytearray(calls.data.data.to_pybytes())
        broken[-1] ^= 1
        calls.data = replace(calls.data, data=pa.py_buffer(bytes(broken)))
        assert code_of(calls.push) == "SHUFFLE_DAMAGED_ON_WAY"


def _zombie(pipe: Connection, address: str) -> None:
    store = service_store([address])
    sink = store.sink(attempt_id(attempt=0), 1)
    sink.write(0, numbers(1_000_000))
    pipe.send("written")
    pipe.recv()
    try:
        sink.commit()
        pipe.send("committed")
    except QueryError as error:
        pipe.send(error.code)


def test_a_zombie_that_wakes_after_its_rival_has_committed(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("spawn")
    with serve_shuffle(tmp_path) as (server,):
        store = service_store([server.address], "q")
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_zombie, args=(theirs, server.address), daemon=True)
        process.start()
        assert ours.recv() == "written"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        block = written(store, batch_of(7), attempt=1)
        ours.send("commit")
        os.kill(process.pid, signal.SIGCONT)
        assert ours.recv() == "SHUFFLE_COMMIT_LOST"
        process.join()
        assert values(store, block) == [7]
        store.close()


def test_what_was_committed_is_there_after_a_kill_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory as kill -9 would leave it, before and after each write of a commit."""
    images: list[tuple[bool, Path]] = []
    acknowledged = False

    def image() -> None:
        images.append((acknowledged, tmp_path / f"image{len(images)}"))
        shutil.copytree(tmp_path / "kept", images[-1][1])

    def around(write: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            image()
            answer = write(*arguments)
            image()
            return answer

        return wrapped

    (tmp_path / "kept").mkdir()
    server_state = ShuffleServerState("keeper", ShuffleServerSettings((tmp_path / "kept",), 2**26))
    server_state.keep_alive(KeepAlive("application", (QUERY,)))
    before, calls = Calls(server_state, attempt_id(0), 1), Calls(server_state, attempt_id(1), 2)
    before.all()
    for name in ("pwrite", "fsync", "fdatasync"):
        monkeypatch.setattr(os, name, around(getattr(os, name)))
    calls.all()
    acknowledged = True
    image()
    monkeypatch.undo()
    server_state.close()
    assert len(images) >= 5
    for was_acknowledged, directory in images:
        # Files are named by where they were.
        shutil.rmtree(tmp_path / "kept")
        directory.rename(tmp_path / "kept")
        restarted = ShuffleServerState("again", ShuffleServerSettings((tmp_path / "kept",), 2**26))
        try:
            assert kept_value(restarted, before) == 1
            if was_acknowledged or restarted.health().committed == 2:
                assert kept_value(restarted, calls) == 2
            else:
                assert "SHUFFLE_BLOCK_MISSING" in Calls(restarted, calls.attempt).read()
        finally:
            restarted.close()


def test_a_commit_is_on_disk_before_it_is_acknowledged(
    server_state: ShuffleServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the machine ends with the process: chunks, the names of their files, and then the journal."""
    synced: list[Path] = []

    def watched(sync: Callable[[int], None]) -> Callable[[int], None]:
        def wrapped(descriptor: int) -> None:
            sync(descriptor)
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

        return wrapped

    calls = Calls(server_state, attempt_id())
    calls.reserve()
    calls.push()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    calls.commit()
    (log,) = logs(tmp_path)
    assert synced == [log, log.parent, tmp_path, tmp_path / "journal"]


def test_a_commit_in_memory_goes_with_the_process_and_readers_are_told(tmp_path: Path) -> None:
    settings = ShuffleServerSettings((tmp_path,), 2**26, in_memory_commits=True)
    server_state = ShuffleServerState("keeper", settings)
    server_state.keep_alive(KeepAlive("application", (QUERY,)))
    calls = Calls(server_state, attempt_id(), 7)
    calls.all()
    assert kept_value(server_state, calls) == 7
    assert logs(tmp_path) == []
    server_state.close()
    restarted = ShuffleServerState("again", settings)
    calls.server_state = restarted
    assert "SHUFFLE_BLOCK_MISSING" in calls.read()
    restarted.close()


def test_a_restart_removes_what_no_record_names(tmp_path: Path) -> None:
    """A query whose beginning was never written down, as when the server was killed then."""
    with open_keeper(tmp_path) as server_state:
        kept = Calls(server_state, attempt_id(), 7)
        kept.all()
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "s0e0p0.log").write_bytes(b"chunk")
    with open_keeper(tmp_path) as restarted:
        assert not (tmp_path / "unknown").exists()
        assert kept_value(restarted, kept) == 7


def test_a_restart_counts_nothing_of_queries_that_are_over(tmp_path: Path) -> None:
    """Their records are in the journal until it is written anew, commits before the end of the query."""
    server_state = ShuffleServerState("keeper", ShuffleServerSettings((tmp_path,), 2**26))
    server_state.keep_alive(KeepAlive("application", (QUERY,)))
    Calls(server_state, attempt_id(0), 1).all()
    server_state.release(QUERY)
    server_state.close()
    restarted = ShuffleServerState("again", ShuffleServerSettings((tmp_path,), 2**26))
    health = restarted.health()
    restarted.close()
    assert (health.queries, health.held_bytes, health.disk_bytes) == (0, 0, 0)
