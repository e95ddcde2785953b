# SPDX-License-Identifier: Apache-2.0
"""Daemons need no PySpark: the distribution volley-worker is Volley without it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.projects import read_project
from volley.plan.nodes import Partitioning
from volley.security import Security
from volley.stages.graph import Output
from volley.testing.contracts import commit_task, in_a_query, numbers, query_id, stage_task
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "deploy" / "worker"


def test_nothing_of_a_daemon_imports_it() -> None:
    code = """
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None  # importing it is now an ImportError
import volley.cli.dashboard, volley.cli.shuffle_service, volley.cli.status, volley.cli.worker
import volley.worker.daemon
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_depends_on_all_but_pyspark() -> None:
    ours, theirs = read_project(ROOT), read_project(WORKER)
    needed = [need for need in ours["dependencies"] if not need.startswith("pyspark")]
    assert len(needed) == len(ours["dependencies"]) - 1
    assert theirs["dependencies"] == needed
    extras = theirs["optional-dependencies"]
    assert extras == {name: ours["optional-dependencies"][name] for name in extras}


@pytest.mark.slow
def test_a_worker_runs_tasks_where_it_is_not_installed(tmp_path: Path) -> None:
    """Everything is installed by pip into a fresh environment."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [str(tmp_path / "bin" / "pip"), "install", "--quiet", str(WORKER)]
    subprocess.run(install, env=outside, check=True)
    found = [str(tmp_path / "bin" / "python"), "-c", "import pyspark"]
    assert subprocess.run(found, env=outside, capture_output=True, check=False).returncode != 0
    command = [str(tmp_path / "bin" / "volley"), "worker", "--json", "--cores", "1", "--memory", "512m"]
    with subprocess.Popen(command, env=outside, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        fleet = Fleet([json.loads(process.stdout.readline())["address"]], Security(), timeout_seconds=10.0)
        try:
            fleet.wait()
            asyncio.run(_run_tasks(FlightTransport(fleet)))
        finally:
            fleet.close()
            process.kill()


async def _run_tasks(transport: FlightTransport) -> None:
    with in_a_query():
        task = stage_task(numbers(1000), Output(Partitioning.SINGLE), 0)
        done = await commit_task(transport, replace(task, settings=(("shuffle.compression", "zstd"),)))
        assert sum(batch.num_rows for batch in transport.fetch(done.blocks[0])) == 1000
        await transport.release(query_id())
