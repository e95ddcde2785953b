# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a writer before and after each of its requests to an object store, and two that replace one table.

A store has no step that changes several objects, so a killed overwrite may leave old rows beside new ones; it never
loses a row, `_SUCCESS` is there only when the table is whole, and the next overwrite repairs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from volley.bridge import upload_commit
from volley.bridge.upload_commit import UploadStaging
from volley.errors import CommitError, QueryError
from volley.storage.locks import ObjectLock
from volley.storage.uploads import Upload, Uploads, object_name
from volley.testing.http_faults import Fault, Request, faulty_proxy
from volley.testing.s3 import Bucket
from volley.worker.file_writer import Written

# Forks before every try: a process that is killed cannot say what it left, and starting Python takes longer.
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import botocore.httpsession as http
from volley.bridge import upload_commit
from volley.bridge.upload_commit import UploadStaging
from volley.storage.uploads import Uploads, object_name
from volley.testing.s3 import Bucket
from volley.worker.file_writer import Written

upload_commit._LOCK_STALE_SECONDS = -1.0  # whoever had it is dead
mode, bucket, file = sys.argv[1], Bucket(int(sys.argv[2])), Path(sys.argv[3])
folders = {"append": [], "overwrite": [""], "dynamic": ["p=1", "p=2"]}[mode]
uploads = Uploads(bucket.add_store().id, bucket.name)
prefix = f"kills-{mode}"

def begin():
    uploads.delete_all(uploads.keys(f"{prefix}/"))
    for folder in ("p=0", "p=1"):
        uploads.put_empty(f"{prefix}/{folder}/old.parquet")
    uploads.put_empty(f"{prefix}/_SUCCESS")

def write():
    store = bucket.add_store().id  # a forked process has no stores
    with UploadStaging(store, f"s3a://{bucket.name}/{prefix}") as staging:
        files = []
        for number, folder in enumerate(("p=1", "p=2", "p=2")):
            name = object_name(staging.job, number, 0, 0, ".parquet", folder)
            files.append(Written(staging.stage(file, f"{folder}/{name}").to_text(), folder, 1, 1))
        staging.commit(files, True, folders)

def find():
    names = [key.removeprefix(f"{prefix}/") for key in uploads.keys(f"{prefix}/")]
    return sorted(n if n.startswith("_") else n.split("/")[0] + (" old" if "old" in n else " new") for n in names)

def killed_at(number):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left, send = number, http.URLLib3Session.send

    def counted(self, request):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = send(self, request)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    http.URLLib3Session.send = counted
    write()
    os._exit(0)

number, is_killed = 0, True
while is_killed:
    number += 1
    begin()
    is_killed = killed_at(number)
    left = find()
    write()
    print(json.dumps([is_killed, left, find()]), flush=True)
"""

OLD = ["p=0 old", "p=1 old"]
NEW = ["p=1 new", "p=2 new", "p=2 new"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_no_row_is_lost_and_the_next_write_repairs(bucket: Bucket, tmp_path: Path, mode: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"rows")
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), mode, str(bucket.port), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    tries = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(tries) > 20
    replaced = {"append": [], "overwrite": OLD, "dynamic": ["p=1 old"]}[mode]
    kept = [name for name in OLD if name not in replaced]
    whole = [sorted([*OLD, "_SUCCESS"]), sorted([*kept, *NEW, "_SUCCESS"])]
    for is_killed, left, again in tries:
        names = [name for name in left if not name.startswith("_")]
        has_all_new = [name for name in names if name.endswith("new")] == NEW
        assert set(kept) <= set(names)
        # Old rows go when all new ones are there.
        assert has_all_new or set(replaced) <= set(names), left
        if "_SUCCESS" in left and mode != "append":
            assert [name for name in left if name != "_volley-commit"] in whole, left
        if mode != "append":
            assert again == whole[1]
        assert is_killed or left == whole[1]


def begin(bucket: Bucket, store: str, url: str, file: Path) -> tuple[UploadStaging, list[Written]]:
    staging = UploadStaging(store, url).__enter__()
    names = [object_name(staging.job, number, 0, 0, ".parquet") for number in range(3)]
    return staging, [Written(staging.stage(file, name).to_text(), "", 1, 1) for name in names]


def test_of_two_that_replace_a_table_one_wins(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second commits when the first has listed what it replaces: without a turn each, rows of both would stay."""
    file = tmp_path / "file"
    file.write_bytes(b"rows")
    store = bucket.add_store().id
    uploads = Uploads(store, bucket.name)
    url = f"s3a://{bucket.name}/rivals"
    uploads.put_empty("rivals/old.parquet")
    (first, mine), (second, theirs) = (begin(bucket, store, url, file) for _ in range(2))
    rival = threading.Thread(target=lambda: second.commit(theirs, True, [""]))
    complete = Uploads.complete

    def complete_when_the_rival_has_tried(self: Uploads, upload: object) -> None:
        if rival.ident is None:
            rival.start()
            rival.join(1.0)
        complete(self, upload)  # type: ignore[arg-type]

    monkeypatch.setattr(upload_commit, "_AT_A_TIME", 1)
    monkeypatch.setattr(Uploads, "complete", complete_when_the_rival_has_tried)
    first.commit(mine, True, [""])
    rival.join()
    left = uploads.keys("rivals/")
    assert len(left) == 4
    assert [key for key in left if first.job in key or "old" in key or "commit" in key] == []
    for staging in (first, second):
        staging.__exit__(None, None, None)


def test_a_commit_that_lost_its_lock_takes_its_files_back(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a suspension: the rival found a lock that nobody had renewed."""
    file = tmp_path / "file"
    file.write_bytes(b"rows")
    store = bucket.add_store().id
    uploads = Uploads(store, bucket.name)
    uploads.put_empty("lost/old.parquet")
    uploads.put_empty("lost/_SUCCESS")
    staging, files = begin(bucket, store, f"s3a://{bucket.name}/lost", file)
    rival = ObjectLock(uploads, "lost/_volley-commit", "rival", stale_seconds=-1)
    complete = Uploads.complete
    completed = []

    def complete_and_lose_the_lock(self: Uploads, upload: Upload) -> None:
        complete(self, upload)
        completed.append(upload.key)
        if len(completed) == len(files):
            rival.acquire(0)

    monkeypatch.setattr(Uploads, "complete", complete_and_lose_the_lock)
    with pytest.raises(CommitError, match="another write took over the lock"):
        staging.commit(files, True, [""])
    # The marker is for the rival to put.
    assert uploads.keys("lost/") == ["lost/_volley-commit", "lost/old.parquet"]
    assert "the lock of s3a://" in caplog.text
    rival.release()
    assert uploads.keys("lost/") == ["lost/old.parquet"]
    staging.__exit__(None, None, None)


def test_a_long_commit_renews_its_lock(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"rows")
    Uploads(bucket.add_store().id, bucket.name).put_empty("long/old.parquet")
    monkeypatch.setattr(upload_commit, "_LOCK_STALE_SECONDS", -1.0)  # any time is long
    with faulty_proxy(bucket.port, lambda request: None) as proxy:
        staging, files = begin(bucket, bucket.add_store(proxy.port).id, f"s3a://{bucket.name}/long", file)
        staging.commit(files, True, [""])
        staging.__exit__(None, None, None)
    # Before each upload is completed, before and after the old objects are deleted, and at both ends.
    puts = [seen for seen in proxy.requests if seen.method == "PUT" and "_volley-commit" in seen.path]
    assert len(puts) == len(files) + 5


class TestLock:
    def test_of_another(self, bucket: Bucket) -> None:
        uploads = Uploads(bucket.add_store().id, bucket.name)
        mine, yours, theirs = (
            ObjectLock(uploads, "locked/_volley-commit", owner, stale_seconds)
            for owner, stale_seconds in (("me", 900), ("you", 900), ("they", -1))
        )
        mine.acquire(0)
        with pytest.raises(
            QueryError, match=r"another write has held the lock s3://shuffle/locked/\S+ for \d+ s"
        ):
            yours.acquire(0)
        mine.keep()
        theirs.acquire(0)
        mine.keep()  # which asks the store when it is due
        for lose in (mine.renew, mine.release):
            with pytest.raises(QueryError, match="another write took over the lock"):
                lose()
        theirs.keep()
        theirs.release()
        assert uploads.keys("locked/") == []

    def test_that_two_found_abandoned_is_taken_over_by_one(self, bucket: Bucket) -> None:
        uploads = Uploads(bucket.add_store().id, bucket.name)
        uploads.put_if("stale/_volley-commit", "of a killed process", None)
        first = ObjectLock(uploads, "stale/_volley-commit", "first", stale_seconds=-1)
        puts = []

        def let_the_first_be_faster(request: Request) -> None:
            if request.method != "GET":
                puts.append(request)
                if len(puts) == 2:  # after the one that found the lock
                    first.acquire(0)
                    second._stale_seconds = 900

        with faulty_proxy(bucket.port, let_the_first_be_faster) as proxy:
            slow = Uploads(bucket.add_store(proxy.port).id, bucket.name)
            second = ObjectLock(slow, "stale/_volley-commit", "second", stale_seconds=-1)
            with pytest.raises(QueryError, match="another write has held the lock"):
                second.acquire(0)
        assert len(puts) == 2
        first.renew()
        first.release()

    def test_when_answers_are_lost(self, bucket: Bucket) -> None:
        pending: list[str] = []

        def lose(request: Request) -> Fault | None:
            if request.method not in pending:
                return None
            pending.remove(request.method)
            return Fault.LOST

        with faulty_proxy(bucket.port, lose) as proxy:
            uploads = Uploads(bucket.add_store(proxy.port).id, bucket.name)
            lock = ObjectLock(uploads, "answers/_volley-commit", "me", 900)
            pending.append("PUT")
            lock.acquire(0)
            pending.append("PUT")
            lock.renew()
            pending.extend(("PUT", "DELETE"))
            lock.release()
        assert (pending, proxy.injected) == ([], 4)
        direct = Uploads(bucket.add_store().id, bucket.name)
        assert direct.keys("answers/") == []
        # A deletion whose answer was lost finds nothing, or what others have put meanwhile.
        etag = direct.put_if("answers/x", "mine", None)
        assert direct.put_if("answers/x", "theirs", etag)
        direct.delete("answers/x", etag)
        assert direct.keys("answers/") == ["answers/x"]
