# SPDX-License-Identifier: Apache-2.0
"""What CI installs is locked within the declared ranges, and the same tree gives the same wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the lock file is for newer Pythons")
def test_the_lock_file_satisfies_the_declared_ranges() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lock.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_lock_file_names_versions_and_no_index() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"#.*|[a-z0-9-]+==[\w.]+", line)] == []
    assert "://" not in "".join(lines)


def test_two_builds_are_byte_equal(tmp_path: Path) -> None:
    """Of two copies, made at other times, under other names and another umask."""
    pytest.importorskip("hatchling")
    wheels = []
    for number, umask in enumerate((0o022, 0o077)):
        tree = tmp_path / f"copy {number}"
        tree.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, tree / name)
        shutil.copytree(
            ROOT / "src",
            tree / "src",
            copy_function=shutil.copyfile,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        then = time.time() - 1e6 * (number + 1)
        for path in tree.rglob("*"):
            os.utime(path, (then, then))
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel"],
            cwd=tree,
            env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
            umask=umask,
            check=True,
            capture_output=True,
        )
        (wheel,) = (tree / "dist").iterdir()
        wheels.append((wheel.name, wheel.read_bytes()))
    assert wheels[0] == wheels[1]


def test_workflows_audit_the_lock_file_and_a_release_lists_its_parts() -> None:
    folder = ROOT / ".github" / "workflows"
    assert "pip-audit --requirement constraints.txt" in (folder / "tests.yml").read_text()
    release = (folder / "release.yml").read_text()
    for step in ("git verify-tag", "cyclonedx-json", "diff --recursive dist again", "SHA256SUMS"):
        assert step in release
