# SPDX-License-Identifier: Apache-2.0
"""Every promise of docs/reliability.md names tests that exist."""

from __future__ import annotations

import re
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
