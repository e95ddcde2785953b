"""The Flight transport keeps the contract of transports, over real daemons in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from volley.cluster import LocalCluster
from volley.errors import BlockMissing, NoWorkers, QueryError
from volley.ids import QueryId
from volley.plan.nodes import Partitioning, Project
from volley.security import Clients
from volley.shuffle.flight import WorkerStore
from volley.shuffle.location import Location
from volley.stages.graph import Output
from volley.testing.contracts import (
    TransportContract,
    committed,
    numbers,
    result_task,
    stage_task,
    started,
)
from volley.transport import handshake
from volley.transport.base import Transport
from volley.transport.fleet import Fleet
from volley.transport.flight import FlightTransport
from volley.transport.messages import Failure, TaskDone, TaskFailure

TIMEOUT_SECONDS = 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, cores=2, memory="512m") as running:
        yield running


@pytest.fixture(scope="module")
def fleet(cluster: LocalCluster) -> Iterator[Fleet]:
    fleet = fleet_of(cluster)
    yield fleet
    fleet.close()


def fleet_of(cluster: LocalCluster, timeout_seconds: float = TIMEOUT_SECONDS) -> Fleet:
    fleet = Fleet(cluster.addresses, cluster.security, timeout_seconds)
    fleet.wait()
    return fleet


class TestFlightTransport(TransportContract):
    @pytest.fixture
    def make_transport(self, cluster: LocalCluster, fleet: Fleet) -> Callable[[int], Transport]:
        def make(workers: int) -> Transport:
            assert workers == len(fleet.peers)
            return FlightTransport(fleet)

        return make
