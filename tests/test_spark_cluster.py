"""Native tasks on a real standalone cluster: a master and two workers in processes of their own."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standalone import StandaloneCluster

from volley.bench.queries import QUERIES

# Starting executors takes its time on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROGRAM = Path(__file__).with_name("standalone_program.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def sidecars() -> list[str]:
    return [path.name for path in Path(tempfile.gettempdir()).glob(f"volley-executor-{os.getuid()}-*")]


def test_tpch(cluster: StandaloneCluster, tpch_directory: Path) -> None:
    answers = json.loads(cluster.run(PROGRAM, str(tpch_directory), *QUERIES).splitlines()[-1])
    assert len(answers) == 22
    assert [answer for answer in answers if answer["engine"] != "native" or answer["difference"]] == []
    assert all(answer["spark_tasks"] >= answer["native_tasks"] > 0 for answer in answers)
    assert any(answer["stages"] > 2 and answer["native_tasks"] > 4 for answer in answers)


def test_a_killed_executor(cluster: StandaloneCluster, tpch_directory: Path) -> None:
    before = set(sidecars())
    answers = json.loads(cluster.run(PROGRAM, str(tpch_directory), "kill").splitlines()[-1])
    assert [(answer["engine"], answer["difference"]) for answer in answers] == [("native", None)] * 2
    deadline = time.monotonic() + 20
    while set(sidecars()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(sidecars()) <= before
