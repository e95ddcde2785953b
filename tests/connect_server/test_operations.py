# SPDX-License-Identifier: Apache-2.0
"""An operation keeps its responses until the client has released them, and ends for everybody who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("grpc")

from volley.connect_server.operations import (
    DelegationFailed,
    Encode,
    Operation,
    OperationKey,
    Operations,
    State,
)
from volley.connect_server.statuses import CANCELED, Failure
from volley.errors import QueryCancelled

KEY = OperationKey("me", "session", "operation")


def always() -> bool:
    return True


def encoder(word: str) -> Encode:
    return lambda id: f"{id}|{word}".encode()


def answered(*words: str) -> Operation:
    operation = Operation(KEY, b"", reattachable=True)
    operation.answer([encoder(word) for word in words])
    return operation


def read(operation: Operation, after: str | None = None, seconds: float | None = None) -> list[str]:
    return [response.decode() for response in operation.responses(after, always, seconds)]


def words(responses: list[str]) -> list[str]:
    return [response.partition("|")[2] for response in responses]


def ids(responses: list[str]) -> list[str]:
    return [response.partition("|")[0] for response in responses]


def test_a_client_comes_back_for_what_it_has_not_seen() -> None:
    operation = answered("schema", "batch", "complete")
    first = ids(read(operation))
    assert words(read(operation)) == ["schema", "batch", "complete"]
    assert words(read(operation, first[0])) == ["batch", "complete"]
    assert words(read(operation, first[2])) == []


def test_released_responses_are_gone_and_others_are_not() -> None:
    operation = answered("schema", "batch", "complete")
    first = ids(read(operation))
    operation.release_until(first[1])
    assert words(read(operation, first[1])) == ["complete"]
    with pytest.raises(Failure, match="POSITION_NOT_AVAILABLE"):
        read(operation)
    with pytest.raises(Failure, match="POSITION_NOT_FOUND"):
        read(operation, first[0])
    operation.release_until("unknown")
    assert words(read(operation, first[1])) == ["complete"]


def test_a_stream_ends_early_but_is_always_a_step_ahead() -> None:
    operation = answered("schema", "batch", "complete")
    after: str | None = None
    seen: list[str] = []
    while len(seen) < 3:
        part = read(operation, after, seconds=0.0)
        assert len(part) == 1
        after = ids(part)[-1]
        seen += words(part)
    assert seen == ["schema", "batch", "complete"]


def test_a_stream_of_a_running_operation_ends_after_its_time() -> None:
    assert read(Operation(KEY, b""), seconds=0.01) == []


def waiting(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that calls, and what it got."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(call())
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def test_a_reader_waits_for_the_answer() -> None:
    operation = Operation(KEY, b"")
    thread, got = waiting(lambda: words(read(operation)))
    operation.answer([lambda id: b"|rows"])
    thread.join(120)
    assert got == [["rows"]]


def test_a_reader_is_told_of_a_failure() -> None:
    operation = Operation(KEY, b"")
    thread, got = waiting(lambda: read(operation))
    operation.fail(CANCELED)
    thread.join(120)
    assert isinstance(got[0], Failure)
    assert got[0].status is CANCELED


def test_a_reader_that_is_not_wanted_any_more_stops() -> None:
    operation = Operation(KEY, b"")
    gone = threading.Event()
    thread, got = waiting(lambda: list(operation.responses(None, lambda: not gone.is_set(), None)))
    gone.set()
    operation.wake()
    thread.join(120)
    assert got == [[]]


def test_an_interrupt_stops_the_work_of_a_running_operation_only() -> None:
    stopped: list[str] = []
    running = Operation(KEY, b"", stop_work=lambda: stopped.append("running"))
    running.interrupt()
    with pytest.raises(QueryCancelled):
        running.check_interrupted()
    done = Operation(KEY, b"", stop_work=lambda: stopped.append("done"))
    done.answer([])
    done.interrupt()
    assert stopped == ["running"]


@pytest.mark.parametrize(("error", "raised"), [("", None), ("it broke", DelegationFailed)])
def test_a_delegated_operation_lasts_as_long_as_sparks_answer(
    error: str, raised: type[Exception] | None
) -> None:
    operation = Operation(KEY, b"")
    with operation.reading():
        thread, got = waiting(operation.delegate)
        assert read(operation) == []
        assert operation.state is State.DELEGATED
        assert operation.send()
        assert not operation.send()
        operation.end_delegation(error)
        thread.join(120)
    assert type(got[0]) is (raised or type(None))


def test_a_delegated_operation_that_nobody_reads_can_be_interrupted() -> None:
    operation = Operation(KEY, b"")
    thread, got = waiting(operation.delegate)
    operation.interrupt()
    thread.join(120)
    assert isinstance(got[0], QueryCancelled)


def test_abandoned_operations_are_interrupted_and_forgotten() -> None:
    operations = Operations()
    operation = Operation(KEY, b"")
    assert operations.add(operation)
    assert not operations.add(Operation(KEY, b""))
    with operation.reading():
        operations.sweep(0.0)
        assert operations.get(KEY) is operation
    operations.sweep(0.0)
    assert operations.get(KEY) is None
    assert operation.interrupted


def test_operations_belong_to_a_session_of_a_user() -> None:
    operations = Operations()
    others = [OperationKey("you", "session", "operation"), OperationKey("me", "other", "operation")]
    for key in [KEY, *others]:
        operations.add(Operation(key, b""))
    assert [operation.key for operation in operations.of_session("me", "session")] == [KEY]


def test_many_readers_get_all_responses() -> None:
    operation = Operation(KEY, b"", reattachable=True)
    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(lambda: words(read(operation))) for _ in range(8)]
        operation.answer([encoder(str(n)) for n in range(100)])
        assert all(reader.result(120) == [str(n) for n in range(100)] for reader in readers)
