# SPDX-License-Identifier: Apache-2.0
"""Every promise of docs/reliability.md names tests that exist, and every mutation can still be made."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_every_promise_has_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    promises = [line for line in text.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(promises) > 10
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
    assert all(re.search(r"`tests/[\w/]+\.py::test_\w+`", line) for line in promises)


def test_every_mutation_can_be_made() -> None:
    """`make mutations` makes them, and runs the tests."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "scripts" / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    mutations = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    for mutation in mutations.MUTATIONS:
        assert (ROOT / mutation.path).read_text(encoding="utf-8").count(mutation.before) == 1, mutation
        path, _, name = mutation.test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), mutation
