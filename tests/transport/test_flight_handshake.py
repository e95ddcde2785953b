# SPDX-License-Identifier: Apache-2.0
"""Drivers and workers that do not fit together say so when they meet."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.flight as flight
import pytest

from volley.cluster import LocalCluster
from volley.errors import NoWorkers, QueryError
from volley.rpc import handshake
from volley.rpc.messages import Failure, TaskFailure
from volley.security import Security
from volley.testing.contracts import numbers, result_task
from volley.transport.fleet import Fleet

TIMEOUT_SECONDS = 30.0


class TestHandshake:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"protocol_version": 99}, "protocol 99"),
            ({"engine_version": "1.2.3"}, "datafusion 1.2.3"),
            ({"hash_fingerprint": "beef"}, "hash fingerprint beef"),
        ],
        ids=["protocol", "engine", "hash"],
    )
    def test_another_version_is_refused_and_both_sides_are_named(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
    ) -> None:
        true = handshake.Identity.of_this_process("old driver")
        # The check of this side is taken away, so that the worker's own is seen.
        monkeypatch.setattr(handshake.Identity, "of_this_process", lambda name: replace(true, **change))
        monkeypatch.setattr(handshake.Identity, "require_same", lambda self, other: None)
        with pytest.raises(NoWorkers) as refused:
            Fleet(cluster.addresses, cluster.security, TIMEOUT_SECONDS).wait()
        assert named in str(refused.value)
        assert "old driver" in str(refused.value)
        assert f"worker {cluster.addresses[0]}" in str(refused.value)

    def test_either_side_refuses_another_protocol_version(self, cluster: LocalCluster) -> None:
        ours = handshake.Identity.of_this_process("driver")
        with pytest.raises(QueryError, match=r"worker x \(Volley .*\) has protocol 7"):
            replace(ours, name="worker x", protocol_version=7).require_same(ours)

    def test_an_error_names_the_unreachable_worker(self, cluster: LocalCluster) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            fleet = Fleet([address], cluster.security, TIMEOUT_SECONDS)
            with pytest.raises(NoWorkers, match=address):
                fleet.wait()
            fleet.close()

    def test_a_worker_that_answers_nonsense_is_lost_at_once(self) -> None:
        """Not only when its query's deadline comes."""

        class Nonsense(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
            def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
                if action.type == "hello":
                    ours = handshake.Identity.of_this_process("worker")
                    yield handshake.to_json(handshake.Welcome(ours, cores=1, slots=1))
                    return
                assert heard.wait(TIMEOUT_SECONDS)
                yield b'{"version": 1, "message": {"$": "News", "odd": 1}}'

        heard, told = threading.Event(), queue.Queue[Any]()
        with Nonsense("grpc://127.0.0.1:0") as server:
            fleet = Fleet([f"127.0.0.1:{server.port}"], Security("token"), TIMEOUT_SECONDS)
            fleet.wait()
            attempt = result_task(numbers(1)).attempt
            fleet.peers[0].listen(attempt, told.put)
            heard.set()
            failure = told.get(timeout=TIMEOUT_SECONDS)
            fleet.close()
        assert isinstance(failure, TaskFailure)
        assert failure.failure is Failure.WORKER
        assert "not a message" in failure.message
