# SPDX-License-Identifier: Apache-2.0
"""Drivers and workers of two versions of Volley with the same protocol version, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from volley.cluster import LocalCluster, health_of
from volley.rpc.control import Health
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

SOURCE = Path(volley.__file__).parent

# What a newer version has added to a task, what its workers report of it, and what they do not offer.
_CHANGES = (
    ("version.py", f'"{volley.__version__}"', '"9.9.9"'),
    (
        "rpc/messages.py",
        "    protocol_version: Count = PROTOCOL_VERSION\n\n\n@dataclass(frozen=True)\nclass TaskDone",
        "    protocol_version: Count = PROTOCOL_VERSION\n    urgency: Count = 0\n    share: float = 1.0\n\n\n"
        "@dataclass(frozen=True)\nclass TaskDone",
    ),
    ("rpc/handshake.py", '    version: Name = ""', '    version: Name = ""\n    colour: Name = "blue"'),
    ("worker/server.py", "            starts=True,\n", ""),
    (
        "events.py",
        "    shuffle_spilled_bytes: Count = 0\n    fetches",
        "    shuffle_spilled_bytes: Count = 0\n    joules: Count = field(default_factory=lambda: 7)\n"
        "    heat: Heat = field(default_factory=lambda: Heat(3))\n    fetches",
    ),
    (
        "events.py",
        "@dataclass(frozen=True)\nclass TaskMetrics:",
        "@dataclass(frozen=True)\nclass Heat:\n    degrees: Count\n\n\n@dataclass(frozen=True)\nclass TaskMetrics:",
    ),
    ("rpc/codec.py", "import FetchMetrics, OperatorMetrics,", "import FetchMetrics, Heat, OperatorMetrics,"),
    ("rpc/codec.py", "(Output, FetchMetrics,", "(Output, Heat, FetchMetrics,"),
)

# A driver without Spark: greets a worker, and runs a task there, and one that needs what was added.
_DRIVER = """
import json, sys
from dataclasses import replace
import pyarrow.flight as flight
import volley
from volley.errors import PeerRefused
from volley.rpc.client import Client
from volley.rpc.codec import encode
from volley.rpc.control import RESULT_TICKET, News, Reserve, Watch
from volley.rpc.handshake import Hello, Identity
from volley.security import Security
from volley.testing.contracts import attempt_id, numbers, result_task

address, token = sys.argv[1:]
with Client(address, Security(token), timeout_seconds=60) as client:
    welcome = client.greet(Hello(Identity.of_this_process("driver"), "driver"))
    task = result_task(numbers(1000))
    client.call("reserve", Reserve("driver", task.attempt))
    client.call("run", task)
    rows = client.flight.do_get(flight.Ticket(RESULT_TICKET + encode(task.attempt))).read_all().num_rows
    (outcome,) = client.call("watch", Watch("driver", 0, 30.0), News).outcomes
    said = {"mine": volley.__version__, "theirs": welcome.identity.version, "rows": rows}
    said["reported"] = outcome.end.rows
    try:
        client.call("run", replace(task, urgency=2))
    except PeerRefused as refused:
        said["refused"] = refused.message
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a newer version of the package."""
    directory = tmp_path_factory.mktemp("newer")
    shutil.copytree(SOURCE, directory / "volley", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in _CHANGES:
        path = directory / "volley" / name
        text = path.read_text()
        assert text.count(old) == 1, name
        path.write_text(text.replace(old, new))
    return directory


@pytest.mark.slow
def test_a_newer_worker_answers_this_driver(
    spark: SparkSession, newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.range(0, 1000, 1, 4).selectExpr("id % 7 as k", "id as v").createOrReplaceTempView("newer_rows")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(newer), *sys.path]))
    with LocalCluster(2, cores=1, memory="512m") as cluster:
        health = health_of(cluster.addresses[0], cluster.security)
        assert isinstance(health, Health)
        assert health.version == "9.9.9"
        with conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
            assert_same_rows(spark, "select k, count(*), sum(v) from newer_rows group by k")


def test_a_newer_driver_uses_a_worker_of_this_version(newer: Path) -> None:
    with LocalCluster(1, cores=1, memory="512m") as cluster:
        token = cluster.token_file.read_text().strip()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(newer), *sys.path])}
        command = [sys.executable, "-c", _DRIVER, cluster.addresses[0], token]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        said = json.loads(run.stdout)
    assert (said["mine"], said["theirs"]) == ("9.9.9", volley.__version__)
    assert said["rows"] == said["reported"] == 1000
    # A task that needs what this version does not have is refused, not run without it.
    assert "TaskSpec.urgency is not known to this version of Volley" in said["refused"]
