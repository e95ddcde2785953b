# SPDX-License-Identifier: Apache-2.0
"""Runs a suite on engines in processes of their own, and prints one table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from volley.bench.environment import environment
from volley.bench.peers.engine_process import EngineSetup
from volley.bench.peers.environments import REQUIREMENTS
from volley.bench.peers.run import PeerResults, Task, run_peers
from volley.bench.peers.table import engine_lines, peers_table
from volley.bench.suite import Suite
from volley.cli.console import advance_runs, counting_bar, save

PEERS = tuple(REQUIREMENTS)
"""Engines of other projects, which are installed on first use."""


def run_isolated(
    console: Console,
    scale: float,
    suite: Suite,
    *,
    engines: tuple[str, ...],
    runs: int,
    json_file: Path | None,
    master: str,
    cores: int,
    settings: Mapping[str, str],
) -> NoReturn:
    """Exit status 1 if Volley's rows are not Spark's."""
    results = PeerResults(scale, environment(None, master, cores, settings), suite=suite.name)
    tasks = [
        Task(query, program=suite.programs[query])
        if query in suite.programs
        else Task(query, suite.text_of(query))
        for query in suite.queries
    ]
    setup = EngineSetup(suite.data, suite.tables, cores, settings)
    with tempfile.TemporaryDirectory(prefix="volley-bench-") as target, counting_bar(console) as bar:
        advance = advance_runs(bar, len(tasks) * len(engines) * (runs + 1), runs)

        def starting(engine: str) -> None:
            if console.is_terminal:
                bar.update(bar.task_ids[0], description=f"Starting {engine}")
            else:
                console.print(f"Starting {engine} ...", highlight=False)

        run_peers(results, engines, setup, tasks, runs, Path(target), advance, starting)
    if results.results:
        console.print(peers_table(results))
    for line in engine_lines(results):
        console.print(line, highlight=False, markup=False)
    save(console, json_file, results.to_dict())
    wrong = [result for result in results.differing if result.engine == "volley"]
    sys.exit(1 if wrong or not results.results else 0)
