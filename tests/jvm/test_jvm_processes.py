# SPDX-License-Identifier: Apache-2.0
"""How many JVMs a worker starts, how it hears from them, and when they end."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import expression_server
from helpers.waiting import eventually
from volley.errors import DataError, JvmLost
from volley.jvm import worker_jvm
from volley.jvm.connection import EvaluationError
from volley.jvm.java import JavaInstallation
from volley.jvm.signature import Signature
from volley.jvm.worker_jvm import JvmSettings, SerializedProgram, WorkerJvms
from volley.plan.types import LONG

_COLUMN = pa.array([1, 2, None])
_SIGNATURE = Signature.of_rows((LONG,), LONG)


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """An executable that takes the arguments of `java`."""
    path = tmp_path / "java"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {expression_server.__file__} "$@"\n')
    path.chmod(stat.S_IRWXU)
    return path


@pytest.fixture
def jvms(java: Path) -> Iterator[WorkerJvms]:
    made = WorkerJvms(JvmSettings(JavaInstallation(str(java), "jars/*"), 2**29, 2))
    yield made
    made.close()


def evaluate(jvms: WorkerJvms, zone: str, content: bytes = b"same", query: str = "q") -> pa.Array:
    environment = f"-Duser.language=en -Duser.country=US -Dfile.encoding=UTF-8 -Duser.timezone={zone}"
    return jvms.evaluate(SerializedProgram(content, "4.1.0/17", environment, query), _SIGNATURE, [_COLUMN])


def zones() -> list[str]:
    """Those of the JVMs that run below this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found += [part.partition("=")[2] for part in command if part.startswith("-Duser.timezone=")]
    return sorted(found)


class Held:
    """A call that is in flight until it is released."""

    def __init__(self, jvms: WorkerJvms, zone: str, fifo: Path, pool: ThreadPoolExecutor) -> None:
        os.mkfifo(fifo)
        self._fifo = fifo
        self.result: Future[pa.Array] = pool.submit(evaluate, jvms, zone, bytes(fifo), f"of {zone}")
        # The server opens it when it evaluates.
        self._end = fifo.open("wb")

    def release(self) -> None:
        self._end.close()
        assert self.result.result(120) == _COLUMN


def test_the_one_that_was_used_longest_ago_makes_way(
    jvms: WorkerJvms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_jvm, "_IDLE_SECONDS", 0.0)
    for zone in ("UTC", "Asia/Tokyo", "UTC"):
        assert evaluate(jvms, zone) == _COLUMN
    assert zones() == ["Asia/Tokyo", "UTC"]
    assert evaluate(jvms, "Europe/Rome") == _COLUMN
    assert zones() == ["Europe/Rome", "UTC"]


def test_one_in_use_stays(jvms: WorkerJvms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_jvm, "_IDLE_SECONDS", 0.0)
    with ThreadPoolExecutor(4) as pool:
        oldest = Held(jvms, "UTC", tmp_path / "1", pool)
        evaluate(jvms, "Asia/Tokyo")
        evaluate(jvms, "Europe/Rome")
        assert zones() == ["Europe/Rome", "UTC"]
        newer = Held(jvms, "Europe/Rome", tmp_path / "2", pool)
        third = pool.submit(evaluate, jvms, "Asia/Tokyo")
        # It neither takes a place nor keeps others from their own.
        assert evaluate(jvms, "UTC") == _COLUMN
        assert zones() == ["Europe/Rome", "UTC"]
        newer.release()
        assert third.result(120) == _COLUMN
        assert zones() == ["Asia/Tokyo", "UTC"]
        oldest.release()


def test_who_finds_no_place_is_told_so(
    jvms: WorkerJvms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(3) as pool:
        held = [Held(jvms, zone, tmp_path / zone, pool) for zone in ("UTC", "GMT")]
        # A query that ends does not wait to the end.
        waiting = pool.submit(evaluate, jvms, "Asia/Tokyo", b"same", "ends")
        eventually(lambda: any(call.query == "ends" for call in list(jvms._calls)))
        jvms.abandon("ends")
        with pytest.raises(EvaluationError, match="the query has ended"):
            waiting.result(120)
        monkeypatch.setattr(worker_jvm, "_WAIT_SECONDS", 0.1)
        with pytest.raises(DataError, match=r"in use for .* another locale, charset or time zone"):
            evaluate(jvms, "Asia/Tokyo")
        for call in held:
            call.release()
    # Between two batches of a query, its JVM stays.
    with pytest.raises(DataError, match="in use"):
        evaluate(jvms, "Asia/Tokyo")
    assert zones() == ["GMT", "UTC"]


def test_options_that_no_driver_sends_are_refused(jvms: WorkerJvms) -> None:
    with pytest.raises(DataError, match="the program asks for JVM options that are not allowed"):
        evaluate(jvms, "UTC -javaagent:x")
    assert zones() == []


def test_warnings_of_java_are_logged(jvms: WorkerJvms, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), ExitStack() as files:
        # As in a worker with many connections: descriptors that `select` cannot take.
        for _ in range(1100):
            files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert evaluate(jvms, "UTC") == _COLUMN
    assert "warning: this goes to standard output" in caplog.text


def test_one_that_does_not_start_says_why(
    jvms: WorkerJvms, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java.write_text("#!/bin/sh\necho no memory; exit 3\n")
    with pytest.raises(JvmLost, match="status 3"):
        evaluate(jvms, "UTC")
    monkeypatch.setattr(worker_jvm, "_START_SECONDS", 0.2)
    java.write_text("#!/bin/sh\necho; exec sleep 100\n")
    with pytest.raises(JvmLost, match="not ready after"):
        evaluate(jvms, "UTC")
    java.unlink()
    with pytest.raises(JvmLost, match="cannot be started"):
        evaluate(jvms, "UTC")
    assert zones() == []
