# SPDX-License-Identifier: Apache-2.0
"""Habits that the whole repository keeps."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "examples", "scripts")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for suffix in ("py", "java", "sh")
    for path in ROOT.glob(f"{folder}/**/*.{suffix}")
)
TESTS = sorted(ROOT.glob("tests/**/test_*.py"))


def test_every_source_file_names_its_licence() -> None:
    """In its first line, or in the second of a script."""
    without = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not any(
            re.fullmatch(r"(#|//) SPDX-License-Identifier: Apache-2\.0", line)
            for line in path.read_text(encoding="utf-8").splitlines()[:2]
        )
    ]
    assert len(SOURCES) > 300
    assert without == []


def test_tests_mirror_the_sources() -> None:
    """A folder of tests is a package of sources, or one of those that are about the whole."""
    packages = {path.parent.name for path in ROOT.glob("src/volley/*/__init__.py")}
    about_the_whole = {"api", "cluster", "helpers", "plugins", "project"}
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/*.py")}
    assert folders <= packages | about_the_whole
    assert list(ROOT.glob("tests/test_*.py")) == []


def test_no_test_imports_another() -> None:
    names = {path.stem for path in TESTS}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted(ROOT.glob("tests/**/*.py"))
        for module in _imports(path)
        if module.rpartition(".")[2] in names
    ]
    assert wrong == []


def _imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) - {"help", "java"}
    helped = set(re.findall(r'@echo "make ([a-z-]+)', text))
    assert helped == targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets <= set(phony.split())


def test_workflows_run_what_make_runs() -> None:
    """So that nobody finds out on a server what could be tried at home."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in ROOT.glob(".github/workflows/*.yml"):
        made = re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8"))
        assert made
        assert set(made) <= targets
