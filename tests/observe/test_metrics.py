# SPDX-License-Identifier: Apache-2.0
"""Metrics by scraping: those of a driver and of a worker after real queries, all of them documented, none with data."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from volley.config import Config
from volley.observe.driver_metrics import DriverMetrics
from volley.security import Security
from volley.shuffle.factory import ShuffleSettings
from volley.shuffle.service.metrics import service_registry
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.transport.flight import close_fleets
from volley.worker.daemon import Daemon, DaemonSettings

ROOT = Path(__file__).parents[2]
DOCUMENTED = set(
    re.findall(r"^\| `(volley_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
)


def scrape(port: int | None) -> dict[str, float]:
    """Samples, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    return {
        sample.name + (str(sorted(sample.labels.items())) if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def names(samples: dict[str, float]) -> set[str]:
    """The documented names: a histogram has several samples, and counters say when they began."""
    plain = {sample.partition("[")[0] for sample in samples}
    return {
        re.sub(r"_seconds_(bucket|count|sum)$", "_seconds", name)
        for name in plain
        if not name.endswith("_created")
    }


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    settings = DaemonSettings(
        host="127.0.0.1",
        port=0,
        cores=1,
        slots=2,
        memory_bytes=8 << 30,  # this process is much larger than a worker
        directories=(tmp_path,),
        shuffle=ShuffleSettings.of(Config.read({})),
        metrics_port=0,
    )
    daemon = Daemon(settings, Security())
    yield daemon
    close_fleets()
    daemon.close()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.embedded
def test_a_driver_and_a_worker(spark: SparkSession, daemon: Daemon) -> None:
    port = free_port()
    spark.conf.set("spark.volley.metrics.port", str(port))
    spark.conf.set("spark.volley.transport", "flight")
    spark.conf.set("spark.volley.workers", daemon.address)
    assert len(spark.range(1000).groupBy((F.col("id") % 7).alias("k")).count().collect()) == 7
    spark.range(3).select(F.input_file_block_start()).collect()
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(3).select(F.expr("1 / (id - 1)")).collect()
    driver, worker = scrape(port), scrape(daemon.metrics_port)
    assert driver["volley_queries_total[('engine', 'native'), ('outcome', 'answered')]"] == 1
    assert driver["volley_queries_total[('engine', 'spark'), ('outcome', 'failed')]"] == 1
    assert driver["volley_fallback_reasons_total[('reason', 'REPLAYED_ON_SPARK')]"] == 1
    assert driver["volley_query_errors_total[('code', 'DIVIDE_BY_ZERO')]"] == 1
    assert driver["volley_query_seconds_count[('engine', 'native')]"] == 1
    assert driver["volley_native_attempts_total"] >= 1
    assert worker["volley_worker_attempts_total[('outcome', 'finished')]"] >= 1
    assert worker["volley_worker_output_rows_total"] >= 7
    assert worker["volley_worker_slots"] == 2
    assert worker["volley_worker_memory_limit_bytes[('pool', 'shuffle')]"] > 0
    assert (
        sum(value for name, value in worker.items() if "attempt_failures" in name and "_created" not in name)
        >= 1
    )
    for found in (driver, worker):
        assert names(found) <= DOCUMENTED
        # Units and totals as Prometheus wants them.
        assert all(re.fullmatch(r"volley_[a-z_]+", name) for name in names(found))
    ours = {name for name in DOCUMENTED if name.startswith("volley_worker_")}
    assert names(worker) == ours


def test_every_metric_of_a_shuffle_server_is_documented(tmp_path: Path) -> None:
    state = ShuffleServerState("server", ShuffleServerSettings((tmp_path,), 2**20))
    found = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in service_registry(state).collect()
    }
    state.close()
    assert found == {name for name in DOCUMENTED if name.startswith("volley_shuffle_")}


def test_a_driver_whose_port_is_taken_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        metrics = DriverMetrics("127.0.0.1", taken.getsockname()[1])
        assert metrics.port is None
        metrics.close()
    assert "no metrics of this driver" in caplog.text


def test_grafana_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "volley.json").read_text())
    asked = {
        name.removesuffix("_bucket")
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"volley_\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked <= DOCUMENTED
