# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a writer before each of its calls to the file system: the old rows or the new ones, and writes work on.

A new or overwritten table and each replaced folder change in one step. Files are appended one by one, as Spark's
committer does: some of them may be there, whole, and none twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Forks before every try: a process that is killed cannot say what it left, and starting Python takes longer.
PROGRAM = """
import json, os, shutil, signal, sys
from pathlib import Path
from volley.bridge.commit import Staging
from volley.worker.file_writer import Written

CHANGES = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "ctypes.dlsym")
mode, home = sys.argv[1], Path(sys.argv[2])
table = home / "t"

def begin():
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    if mode != "new":
        for name in ("p=0", "p=1"):
            (table / name).mkdir(parents=True)
            (table / name / "part-old.parquet").write_text("old")

def write():
    with Staging(table, mode in ("new", "overwrite")) as staging:
        files = []
        for number, name in enumerate(("p=1", "p=2", "p=2")):
            path = staging.tasks / f"{number}-0-{number:03}.parquet"
            path.write_text("new")
            files.append(Written(str(path), name, 1, 1))
        replaced = ("p=1", "p=2") if mode == "dynamic" else ()
        staging.commit(files, ".parquet", replaced, True)

def find():
    files = [path for path in table.rglob("part-*") if ".volley-" not in str(path)]
    return sorted((path.parent.name, path.read_text()) for path in files)

def hidden():
    # One that was killed before it had its lock has no files, and is removed when it is an hour old.
    return sorted(path.name for path in home.rglob(".volley-*") if any(p.name != "lock.new" for p in path.iterdir()))

def killed_at(number):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = number

    def count(event, arguments):
        nonlocal left
        if event in CHANGES:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    write()
    os._exit(0)

number, is_killed = 0, True
while is_killed:
    number += 1
    begin()
    is_killed = killed_at(number)
    left = find()
    write()
    print(json.dumps([is_killed, left, find(), hidden()]), flush=True)
"""

OLD = [["p=0", "old"], ["p=1", "old"]]
NEW = [["p=1", "new"], ["p=2", "new"], ["p=2", "new"]]


def kill_everywhere(
    mode: str, directory: Path
) -> list[tuple[bool, list[list[str]], list[list[str]], list[str]]]:
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), mode, str(directory / "home")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    tries = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(tries) > 10
    assert [killed for killed, *_ in tries] == [True] * (len(tries) - 1) + [False]
    assert all(not hidden for *_, hidden in tries), "the next write did not tidy up"
    return [tuple(one) for one in tries]


@pytest.mark.parametrize("mode", [pytest.param("new", marks=pytest.mark.slow), "overwrite"])
def test_a_table_is_replaced_in_one_step(tmp_path: Path, mode: str) -> None:
    before = [] if mode == "new" else OLD
    found = [left for _, left, _, _ in kill_everywhere(mode, tmp_path)]
    assert all(left in (before, NEW) for left in found), found
    assert before in found
    assert NEW in found


@pytest.mark.slow
def test_a_folder_is_replaced_in_one_step(tmp_path: Path) -> None:
    for _, left, again, _ in kill_everywhere("dynamic", tmp_path):
        folders = {name: [text for at, text in left if at == name] for name in ("p=0", "p=1", "p=2")}
        assert folders["p=0"] == ["old"]
        assert folders["p=1"] in (["old"], ["new"])
        assert folders["p=2"] in ([], ["new", "new"])
        assert again == [OLD[0], *NEW]


@pytest.mark.slow
def test_appended_files_are_whole_and_old_ones_stay(tmp_path: Path) -> None:
    for _, left, again, _ in kill_everywhere("append", tmp_path):
        assert [part for part in left if part[1] == "old"] == OLD
        added = [part for part in left if part[1] == "new"]
        assert len(added) <= len(NEW)
        assert all(added.count(part) <= NEW.count(part) for part in added), added
        assert len(again) == len(left) + len(NEW)
