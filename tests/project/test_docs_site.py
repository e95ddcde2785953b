# SPDX-License-Identifier: Apache-2.0
"""The documentation site is built strictly, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from volley.codes import CODES

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # A link or an anchor that leads nowhere is a warning, and strictness makes it an error.
    assert built.returncode == 0, built.stderr
    codes = (tmp_path / "codes.html").read_text(encoding="utf-8")
    assert all(f'id="{code.name.lower()}"' in codes for code in CODES)
    assert "Let Volley answer this session" in (tmp_path / "api-docstrings.html").read_text(encoding="utf-8")
    elsewhere = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?:[^\"]*)")
    for page in tmp_path.rglob("*.html"):
        assert elsewhere.findall(page.read_text(encoding="utf-8")) == [], page.name
