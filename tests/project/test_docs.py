# SPDX-License-Identifier: Apache-2.0
"""Documentation that is made from code is made anew when the code changes, and the rest does not point nowhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from volley.bench.engines import Run
from volley.bench.run import Result, Results
from volley.options import OPTIONS, PLUGIN_PREFIX
from volley.support.reasons import MEANINGS, Reason

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


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
    # Below this prefix, options belong to plug-ins.
    named = {name for name in named if not name.startswith(PLUGIN_PREFIX.rstrip("."))}
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_is_named_exists(page: Path) -> None:
    """Paths under src/, tests/, docs/ and examples/ in backticks are files or directories of the repository."""
    named = re.findall(r"`((?:src|tests|docs|examples|scripts)/[\w./*-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in named if not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_figures_are_those_that_were_measured() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    empty = pa.table({"a": pa.array([], pa.int64())})

    def result(query: str, engine: str, seconds: float) -> Result:
        run = Run(empty, seconds, native=engine == "volley", spark_tasks=0, planning_seconds=0.5)
        return Result(query, engine, run, run.own_seconds, (seconds,), rows_match=True)

    environment = {
        "master": "local[2]",
        "processor": "a processor",
        "memory_bytes": 8 << 30,
        "versions": {"pyspark": "4.3.0"},
        "java": "17",
    }
    seconds = {"volley": 1.5, "spark": 6.0, "datafusion": 0.8}
    results = Results(1.0, environment, [result("q01", engine, value) for engine, value in seconds.items()])
    text = generate.figures(results.to_dict())
    assert "| q01 | 1.50 | 0.50 | 6.00 | 0.80 | 4.0 | 1.25 |" in text
    assert "1 of 1 queries native, 1 of 1 with Spark's rows, 0 Spark tasks" in text
    assert "Ahead of Spark on every query" in text
