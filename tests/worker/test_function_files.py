# SPDX-License-Identifier: Apache-2.0
"""Files of the driver that functions on other machines need: sent once per worker, whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import eventually
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.python_nodes import SentFile
from volley.rpc.messages import SplitBatch, SplitRequest
from volley.splits.file_feed import PIECE_BYTES, FileFeed
from volley.worker.python import files as function_files
from volley.worker.python.files import FunctionFiles, HeldFiles, shared_function_files
from volley.worker.split_queue import SplitQueues, Stopped

ATTEMPT = AttemptId(TaskId(StageId(QueryId.new(), 0), 0), 0)


@pytest.fixture(autouse=True)
def no_files_before_and_after() -> Iterator[None]:
    function_files._files.close()
    yield
    function_files._files.close()


def sent(path: Path, content: bytes, feed: int = 7, unpacked: bool = False) -> tuple[SentFile, FileFeed]:
    path.write_bytes(content)
    name = hashlib.sha256(content).hexdigest()
    return SentFile(name, len(content), feed, unpacked), feed_of(path)


def feed_of(path: Path) -> FileFeed:
    with path.open("rb") as file:
        return FileFeed(file)


class Driver:
    """Answers the requests of an attempt from a file, as a coordinator does."""

    def __init__(self, feed: FileFeed) -> None:
        self.feed = feed
        self.requests: list[SplitRequest] = []

    def queues(self) -> SplitQueues:
        queues = SplitQueues(ATTEMPT, lambda request: self.answer(queues, request))
        return queues

    def answer(self, queues: SplitQueues, request: SplitRequest) -> None:
        self.requests.append(request)
        share = self.feed.take(request.after, request.credits)
        queues.give(SplitBatch(ATTEMPT, request.feed, request.after, share.splits, share.after, share.over))


async def receive(held: HeldFiles) -> None:
    await asyncio.to_thread(held.receive)


def test_a_file_arrives_whole_and_once(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096 * 3 + b"the last piece is short"
    file, feed = sent(tmp_path / "file", content)
    driver = Driver(feed)

    async def run() -> None:
        first = HeldFiles([file], driver.queues())
        second = HeldFiles([file], driver.queues())
        await asyncio.gather(receive(first), receive(second))
        asked = len(driver.requests)
        third = HeldFiles([file], driver.queues())
        await receive(third)
        assert len(driver.requests) == asked
        assert {request.feed for request in driver.requests} == {7}
        assert shared_function_files().path(file).read_bytes() == content
        for held in (first, second, third):
            held.close()

    asyncio.run(run())
    # No piece was sent twice.
    assert sum(request.after == 0 for request in driver.requests) == 1


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 9 * PIECE_BYTES])
def test_pieces_cover_the_file(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    feed = feed_of(tmp_path / "file")
    found, after, over = b"", 0, False
    while not over:
        share = feed.take(after, 256)
        assert len(share.splits) <= 4
        found, after, over = found + b"".join(share.splits), share.after, share.over
    assert len(found) == size


@pytest.mark.parametrize("content", [b"changed", b"much longer than it was announced"])
def test_a_file_that_changed_on_its_way_is_refused(tmp_path: Path, content: bytes) -> None:
    file, feed = sent(tmp_path / "file", b"planned")
    (tmp_path / "file").write_bytes(content)
    driver = Driver(feed_of(tmp_path / "file"))

    async def run() -> None:
        held = HeldFiles([file], driver.queues())
        with pytest.raises(OSError, match=r"did not arrive as it was sent|more than the 7 bytes"):
            await receive(held)
        assert not shared_function_files().path(file).exists()
        # The next task tries again.
        (tmp_path / "file").write_bytes(b"planned")
        again = HeldFiles([file], Driver(feed).queues())
        await receive(again)
        assert shared_function_files().path(file).read_bytes() == b"planned"

    asyncio.run(run())


def test_directories_are_unpacked(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("package/module.py")
        member.size, member.mode = 3, 0o755
        archive.addfile(member, io.BytesIO(b"a=1"))
    file, feed = sent(tmp_path / "file", packed.getvalue(), unpacked=True)

    async def run() -> None:
        await receive(HeldFiles([file], Driver(feed).queues()))

    asyncio.run(run())
    module = shared_function_files().path(file) / "package" / "module.py"
    assert (module.read_bytes(), module.stat().st_mode & 0o777) == (b"a=1", 0o755)


def test_a_task_that_is_stopped_waits_for_nothing(tmp_path: Path) -> None:
    file, _ = sent(tmp_path / "file", b"never sent")

    async def run() -> None:
        # Nobody answers: the first task waits for its pieces, the second for the first.
        tasks = [HeldFiles([file], SplitQueues(ATTEMPT, lambda request: None)) for _ in range(2)]
        waiting = [asyncio.create_task(receive(held)) for held in tasks]
        for held, work in zip(reversed(tasks), reversed(waiting), strict=True):
            held.stop()
            with pytest.raises(Stopped):
                await work

    asyncio.run(run())


def test_files_go_some_time_after_their_last_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_files, "_IDLE_SECONDS", 0.05)
    file, feed = sent(tmp_path / "file", b"content")

    async def run() -> HeldFiles:
        held = HeldFiles([file], Driver(feed).queues())
        await receive(held)
        return held

    held = asyncio.run(run())
    files: FunctionFiles = shared_function_files()
    assert files.path(file).exists()
    held.close()
    eventually(lambda: not files.path(file).exists())
