# SPDX-License-Identifier: Apache-2.0
"""Writers to one table at the same time: none removes what another has just begun."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from volley.bridge import commit
from volley.bridge.commit import Staging
from volley.errors import CommitError, QueryError
from volley.worker.file_writer import Written

# At every single step of the file system that a writer takes to begin, another one begins, sweeps and ends.
_INTERLEAVED = """
    import sys
    from pathlib import Path
    from volley.bridge.commit import Staging

    root, whole = Path(sys.argv[1]), sys.argv[2] == "whole"
    step = wanted = 0
    table = None
    inside = False

    def hook(event, arguments):
        global step, inside
        if inside or table is None or event not in WATCHED:
            return
        step += 1
        if step == wanted:
            inside = True
            with Staging(table, whole):
                pass
            inside = False

    WATCHED = {"os.mkdir", "open", "fcntl.flock", "os.rename", "os.listdir", "os.scandir"}
    sys.addaudithook(hook)
    while step >= wanted:
        wanted, step, table = wanted + 1, 0, None
        made = root / f"t{wanted}"
        if not whole:
            made.mkdir()
        table = made
        with Staging(made, whole) as staging:
            table = None
            assert staging.tasks.is_dir(), f"removed at step {wanted}"
    print(wanted)
"""


@pytest.mark.parametrize("kind", ["whole", "part"])
def test_a_writer_that_begins_is_left_alone_by_others(tmp_path: Path, kind: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_INTERLEAVED), str(tmp_path), kind],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 4, "every step was watched"


@pytest.mark.slow
def test_many_processes_write_to_one_table(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from volley.bridge.commit import Staging
        for _ in range(300):
            with Staging(Path(sys.argv[1]) / "t", True) as staging:
                (staging.tasks / "x").touch()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [writer.communicate(timeout=120)[1] for writer in writers]
    assert errors == [""] * 4
    assert not list(tmp_path.iterdir())


def _begin(table: Path, whole: bool, text: str) -> tuple[Staging, list[Written]]:
    """A write of two folders whose files are all there."""
    staging = Staging(table, whole).__enter__()
    files = []
    for number, folder in enumerate(("p=1", "p=2")):
        path = staging.tasks / f"{number}-0-000.parquet"
        path.write_text(text)
        files.append(Written(str(path), folder, 1, 1))
    return staging, files


def _rows(table: Path) -> list[str]:
    return [path.read_text() for path in sorted(table.glob("p=*/part-*"))]


@pytest.mark.parametrize("whole", [False, True], ids=["folders", "whole table"])
def test_of_two_that_replace_the_same_folders_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The second commits when the first has replaced one folder of two: its turn comes after it."""
    table = tmp_path / "t"
    with Staging(table, True) as staging:
        staging.commit([_written(staging)], ".parquet", (), False)
    first, mine = _begin(table, False, "mine")
    second, theirs = _begin(table, whole, "theirs")
    replaces = () if whole else ("p=1", "p=2")
    rival = threading.Thread(target=lambda: second.commit(theirs, ".parquet", replaces, False))
    put = commit._put

    def put_and_let_the_rival_try(new: Path, old: Path) -> None:
        put(new, old)
        if rival.ident is None:
            rival.start()
            rival.join(0.3)

    monkeypatch.setattr(commit, "_put", put_and_let_the_rival_try)
    first.commit(mine, ".parquet", ("p=1", "p=2"), False)
    rival.join()
    assert _rows(table) == ["theirs", "theirs"]
    for staging in (first, second):
        staging.__exit__(None, None, None)
    assert not list(tmp_path.glob(".volley*"))


def test_a_lock_that_is_never_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t"
    with Staging(table, True) as staging:
        staging.commit([_written(staging)], ".parquet", (), False)
    monkeypatch.setattr(commit, "_LOCK_WAIT_SECONDS", 0.1)
    descriptor = os.open(table, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    late, files = _begin(table, False, "late")
    with pytest.raises(QueryError, match=f"another write has held the lock of {table}"):
        late.commit(files, ".parquet", (), False)
    late.__exit__(None, None, None)
    assert "late" not in _rows(table)
    os.close(descriptor)
    later, files = _begin(table, False, "later")
    later.commit(files, ".parquet", (), False)
    later.__exit__(None, None, None)
    assert "later" in _rows(table)


def test_a_table_that_was_replaced_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """Also by a write without rows, which would empty its folders."""
    table = tmp_path / "t"
    with Staging(table, True) as staging:
        staging.commit([_written(staging)], ".parquet", (), False)
    with Staging(table, False) as late:
        with Staging(table, True) as other:
            path = other.tasks / "0-0-000.parquet"
            path.write_text("theirs")
            other.commit([Written(str(path), "p=1", 1, 1)], ".parquet", (), False)
        with pytest.raises(QueryError, match="another write has replaced"):
            late.commit([], ".parquet", ("p=1",), False)
    assert _rows(table) == ["theirs"]


def test_what_was_abandoned_before_it_was_locked_goes_when_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".volley-t-old", tmp_path / ".volley-t-young"
    for root in (old, young):
        root.mkdir()
    os.utime(old, (0, 0))
    with Staging(tmp_path / "t", True):
        assert not old.exists()
        assert young.exists()


def _written(staging: Staging) -> Written:
    path = staging.tasks / "0-0-000.parquet"
    path.write_text("rows")
    return Written(str(path), "", 1, 1)


def test_staging_that_somebody_removed_is_a_typed_error(tmp_path: Path) -> None:
    with Staging(tmp_path / "t", True) as staging:
        written = _written(staging)
        Path(written.file).unlink()
        with pytest.raises(QueryError, match="staging") as raised:
            staging.commit([written], ".parquet", (), False)
    assert not isinstance(raised.value, CommitError), "nothing has changed, so that it may be written again"


def test_a_commit_that_fails_half_way_is_never_replayed(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.mkdir()
    with Staging(table, False) as staging:
        written = _written(staging)
        table.chmod(0o500)
        try:
            if os.access(table, os.W_OK):
                # Root may write everywhere: a file where a folder has to be stops it as well.
                table.chmod(0o700)
                written = Written(written.file, "day=1", 1, 1)
                (table / "day=1").touch()
            with pytest.raises(CommitError):
                staging.commit([written], ".parquet", (), False)
        finally:
            table.chmod(0o700)
