"""Documentation that is made from code is made anew when the code changes, and the rest does not point nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from volley.config import OPTIONS
from volley.support.reasons import MEANINGS, Reason

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Reason)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_are_named_exist(page: Path) -> None:
    known = {option.key for option in OPTIONS}
    named = set(re.findall(r"\bspark\.volley\.[a-zA-Z.]*[a-zA-Z]", page.read_text(encoding="utf-8")))
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_named_exists(page: Path) -> None:
    """Paths under src/, tests/, docs/ and examples/ in backticks are files or directories of the repository."""
    named = re.findall(r"`((?:src|tests|docs|examples|scripts)/[\w./*-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in named if not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []
