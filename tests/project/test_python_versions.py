# SPDX-License-Identifier: Apache-2.0
"""The sources run on every supported Python, and what stands in for newer ones behaves like them.

ruff and mypy check the syntax and names against the oldest Python. These are differences that they do not see.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import volley
from helpers.projects import read_project

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(volley.__file__).parent.rglob("*.py"))
_OWN_TIMEOUTS = re.compile(r"\basyncio\b|\bfutures?\b")
_POSSESSIVE = re.compile(r"[*+?}]\+|\(\?>")


def test_a_timeout_of_asyncio_or_a_future_is_caught_by_its_own_name() -> None:
    """Before Python 3.11, it is not the builtin TimeoutError, which sockets raise."""
    wrong = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if not _OWN_TIMEOUTS.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [node.type] if isinstance(node, ast.ExceptHandler) and node.type else []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "suppress":
                names = node.args
            caught = {name.id for whole in names for name in ast.walk(whole) if isinstance(name, ast.Name)}
            if "TimeoutError" in caught:
                wrong.append(f"{path.name}: {ast.unparse(names[0])} at line {names[0].lineno}")
    assert wrong == []


def test_patterns_are_those_of_the_oldest_python() -> None:
    """Possessive quantifiers and atomic groups are of Python 3.11. A doubled `+` in a text is no pattern."""
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("compile", "match", "search", "sub")
        for text in node.args
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and _POSSESSIVE.search(text.value)
    ]
    assert wrong == []


def test_the_declared_pythons_agree() -> None:
    project = read_project(ROOT)
    oldest = project["requires-python"].removeprefix(">=")
    classifiers = [line for line in project["classifiers"] if "Python :: 3." in line]
    assert classifiers[0].endswith(f":: {oldest}")
    assert read_project(ROOT / "deploy" / "worker")["requires-python"] == project["requires-python"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{oldest.replace(".", "")}"' in text
    assert f'python_version = "{oldest}"' in text


@pytest.fixture(scope="module")
def stand_ins() -> ModuleType:
    """`volley.python_versions` as the oldest Python has it."""
    found = importlib.util.find_spec("volley.python_versions")
    assert found is not None
    assert found.origin is not None
    module = ModuleType("stand_ins")
    text = Path(found.origin).read_text(encoding="utf-8").replace("sys.version_info >= (3, 11)", "False")
    exec(compile(text, found.origin, "exec"), module.__dict__)
    return module


def test_names_of_enumerations_are_texts(stand_ins: ModuleType) -> None:
    kind: Any = stand_ins.StrEnum("Kind", {"INNER": "inner"})
    assert (str(kind.INNER), f"{kind.INNER:>6}", kind.INNER == "inner") == ("inner", " inner", True)


def test_a_timeout_ends_what_takes_too_long(stand_ins: ModuleType) -> None:
    async def story() -> list[str]:
        told = []
        try:
            async with stand_ins.timeout(0.01):
                await asyncio.sleep(60)
        except asyncio.TimeoutError:
            told.append("late")
        async with stand_ins.timeout(0.01) as limit:
            limit.reschedule(None)
            await asyncio.sleep(0.05)
            told.append("rescheduled")
        async with stand_ins.timeout(60):
            told.append("in time")
        with pytest.raises(asyncio.CancelledError):
            async with stand_ins.timeout(60):
                raise asyncio.CancelledError
        return told

    assert asyncio.run(story()) == ["late", "rescheduled", "in time"]


def test_a_runner_keeps_its_loop_and_stops_what_is_left(stand_ins: ModuleType) -> None:
    stopped: list[str] = []

    async def begin() -> asyncio.AbstractEventLoop:
        async def wait() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append("task")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert not task.done()
        return asyncio.get_running_loop()

    with stand_ins.Runner() as runner:
        first = runner.run(begin())
        assert runner.run(begin()) is first
    assert stopped == ["task", "task"]
    assert first.is_closed()


def test_notes_and_directories(stand_ins: ModuleType, tmp_path: Path) -> None:
    error = ValueError("x")
    stand_ins.add_note(error, "first")
    stand_ins.add_note(error, "second")
    assert getattr(error, "__notes__", []) == ["first", "second"]
    before = Path.cwd()
    with stand_ins.chdir(tmp_path):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == before


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="newer Pythons have their own")
def test_the_stand_ins_are_used_where_they_are_needed() -> None:
    from volley import python_versions

    assert python_versions.StrEnum.__module__ == "volley.python_versions"
