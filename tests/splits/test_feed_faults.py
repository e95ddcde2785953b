# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a worker while splits flow to it: every split is in the result, once."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from volley.cancellation import CancellationToken
from volley.cluster import LocalCluster
from volley.coordinator.options import RunOptions
from volley.coordinator.run import execute
from volley.events import EventLog, FeedFinished, TaskFailed
from volley.ids import QueryId
from volley.plan.expressions import Attribute
from volley.plan.local_registry import register
from volley.plan.nodes import HERE, Exchange, Node, Partitioning, SourceScan
from volley.plan.types import LONG
from volley.splits.datasource import make_portable
from volley.stages.cut import make_stages
from volley.testing.limits import DISTRIBUTED
from volley.testing.sources import Numbers
from volley.transport.flight import FlightTransport, close_fleets, lease_fleet

ID, SPLIT, PID = (Attribute(number, name, LONG) for number, name in ((1, "id"), (2, "split"), (3, "pid")))
SPLITS, ROWS = 60, 50


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, cores=1, memory="256m") as running:
        yield running
        close_fleets()


def exchanged(**options: Any) -> Node:
    """The numbers, through an exchange: what a lost worker had of it is read again from its splits."""
    source = Numbers({key: str(value) for key, value in options.items()})
    schema = StructType().add("id", LongType()).add("split", LongType()).add("pid", LongType())
    reader = make_portable(f"{HERE}{register(pickle.dumps(source))}:{schema.json()}")
    scan = SourceScan("numbers", reader, ("id", "split", "pid"), (ID, SPLIT, PID))
    return Exchange(Partitioning.HASH, 3, (ID,), (), scan)


def ids(cluster: LocalCluster, plan: Node, log: EventLog) -> list[int]:
    fleet = lease_fleet(cluster.addresses, cluster.security, 5.0)
    stream = execute(
        make_stages(plan, 3, DISTRIBUTED),
        FlightTransport(fleet),
        RunOptions(
            query=QueryId.new(),
            token=CancellationToken(),
            timeout_seconds=120,
            attempts=3,
            events=log,
            limits=DISTRIBUTED,
        ),
    )
    with stream:
        return [value for batch in stream for value in batch.column(0).to_pylist()]


def test_a_worker_is_killed_with_splits_in_its_hands(cluster: LocalCluster, tmp_path: Path) -> None:
    gate, calls = tmp_path / "gate", tmp_path / "calls"
    calls.mkdir()
    victim = cluster.members[0]

    def strike() -> None:
        # Splits from the tenth on wait to be read, so all three workers come to hold some that they have not read.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            readers = {path.name.rpartition("-")[2] for path in calls.glob("reading-*")}
            if readers >= {str(member.pid) for member in cluster.members}:
                break
            time.sleep(0.005)
        os.kill(victim.pid, signal.SIGKILL)
        victim.process.wait()
        gate.touch()

    striker = threading.Thread(target=strike)
    striker.start()
    log = EventLog()
    found = ids(cluster, exchanged(splits=SPLITS, rows=ROWS, wait_for=gate, wait_from=10, calls=calls), log)
    striker.join()
    assert sorted(found) == list(range(SPLITS * ROWS))
    assert any(isinstance(event, TaskFailed) for event in log.events), "the blow hit nothing"
    feeds = [event.status for event in log.events if isinstance(event, FeedFinished)]
    assert [(feed.found, feed.done, feed.final) for feed in feeds] == [(SPLITS, SPLITS, True)]
    # Splits that the victim had begun to read were read by somebody else after that.
    begun = [path.name.split("-")[1:] for path in calls.glob("reading-*")]
    lost = {split for split, pid in begun if pid == str(victim.pid)}
    assert lost
    assert lost <= {split for split, pid in begun if pid != str(victim.pid)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_worker_is_killed_at_any_moment(cluster: LocalCluster, seed: int) -> None:
    plan = exchanged(splits=300, rows=ROWS, pause=0.002, row_pause=0.005)
    started = time.monotonic()
    assert sorted(ids(cluster, plan, EventLog())) == list(range(300 * ROWS))
    seconds = time.monotonic() - started
    chance = random.Random(seed)
    victim = chance.choice(cluster.members)
    timer = threading.Timer(chance.uniform(0, 1.1 * seconds), os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    try:
        found = ids(cluster, plan, EventLog())
    finally:
        timer.join()
    assert sorted(found) == list(range(300 * ROWS))
