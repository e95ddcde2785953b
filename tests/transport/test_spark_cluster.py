# SPDX-License-Identifier: Apache-2.0
"""Native tasks on a real standalone cluster: a master and two workers in processes of their own."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.standalone import StandaloneCluster
from volley.bench.data import tpch_data
from volley.bench.queries import QUERIES
from volley.cluster import LocalCluster

# Starting executors takes its time on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAM = Path(__file__).parents[1].joinpath("helpers", "standalone_program.py")
# Spark looks often, and a copy is started as soon as half of the tasks have ended.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
}

DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "4s",
    # Of the run on Spark that gives the expected rows.
    "spark.dynamicAllocation.shuffleTracking.timeout": "4s",
    "spark.executor.cores": "1",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    before = set(sidecars())
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running
    deadline = time.monotonic() + 20
    while set(sidecars()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(sidecars()) <= before, "a sidecar has outlived its executor"


@pytest.fixture(scope="module")
def data() -> Path:
    return tpch_data(0.1)


def sidecars() -> list[str]:
    return [path.name for path in Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*")]


def answers_of(
    cluster: StandaloneCluster,
    data: Path,
    *what: str,
    settings: Mapping[str, str] | None = None,
    engine: str = "native",
) -> list[dict[str, Any]]:
    output = cluster.run(PROGRAM, str(data), json.dumps(dict(settings or {})), *what)
    answers: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    assert [answer for answer in answers if answer["engine"] != engine or answer["difference"]] == []
    return answers


@pytest.mark.parametrize("queries", [QUERIES[:11], QUERIES[11:]], ids=["first half", "second half"])
def test_tpch(cluster: StandaloneCluster, data: Path, queries: tuple[str, ...]) -> None:
    answers = answers_of(cluster, data, "tpch", *queries)
    assert [answer["name"] for answer in answers] == list(queries)
    assert all(answer["spark_tasks"] == answer["native_tasks"] > 0 for answer in answers), answers
    assert any(len(answer["stages"]) > 2 and answer["native_tasks"] > 4 for answer in answers)


def test_a_killed_executor(cluster: StandaloneCluster, data: Path) -> None:
    """What it held is computed again, and only that."""
    answers = answers_of(cluster, data, "kill", "running", "over")
    again = [sum(attempts - tasks for tasks, attempts in answer["stages"]) for answer in answers]
    assert again[1] > 0, "what was lost was needed"
    assert again[1] < sum(tasks for tasks, _ in answers[1]["stages"]), answers[1]


def test_a_killed_executor_beside_a_shuffle_service(cluster: StandaloneCluster, data: Path) -> None:
    """What it made is kept elsewhere, so nothing that had ended runs again."""
    with LocalCluster(0, cores=1, services=2) as services:
        keep = {key: value for key, value in services.settings.items() if "shuffle" in key or "token" in key}
        answers = answers_of(cluster, data, "kill", "running", "over", settings=keep)
    assert [answer["name"] for answer in answers] == ["running", "over"]
    assert all(tasks == attempts for answer in answers for tasks, attempts in answer["stages"]), answers


def test_dynamic_allocation_beside_a_shuffle_service(cluster: StandaloneCluster, data: Path) -> None:
    """Spark releases an executor whose output is still to be read, and nothing runs again."""
    with LocalCluster(0, cores=1, services=2) as services:
        keep = {key: value for key, value in services.settings.items() if "shuffle" in key or "token" in key}
        (answer,) = answers_of(cluster, data, "release", settings=keep | DYNAMIC_ALLOCATION)
    assert len(answer["stages"]) > 2
    assert all(tasks == attempts for tasks, attempts in answer["stages"]), answer


@pytest.mark.parametrize("store", ["memory", "service"])
def test_speculation(cluster: StandaloneCluster, data: Path, store: str) -> None:
    """Copies of tasks that take too long, and the zombies that these become, never double a row."""
    with LocalCluster(0, cores=1, services=1) as services:
        keep = {key: value for key, value in services.settings.items() if "shuffle" in key or "token" in key}
        settings = SPECULATION | (keep if store == "service" else {})
        answers = answers_of(cluster, data, "stop", settings=settings)
    assert answers[0]["speculative_tasks"] > 0


@pytest.mark.parametrize("transport", ["local", "spark"])
def test_mixed_queries(cluster: StandaloneCluster, data: Path, transport: str) -> None:
    """Rows cross between executors and the driver, or sidecars; those of tasks that were overtaken count once."""
    settings = {**SPECULATION, "spark.volley.transport": transport, "spark.volley.fallback": "allow"}
    answers = answers_of(cluster, data, "mixed", settings=settings, engine="mixed")
    assert [answer["name"] for answer in answers] == ["above", "below"]
    assert any(answer["speculative_tasks"] for answer in answers), answers
