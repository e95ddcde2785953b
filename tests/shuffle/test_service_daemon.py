# SPDX-License-Identifier: Apache-2.0
"""A shuffle server as a daemon: who may speak to it, what it tells, how it drains."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from helpers.service_calls import MANY, QUERY, code_of, numbers, open_keeper, values, written
from helpers.waiting import eventually
from volley.cli.main import cli
from volley.cluster import health_of
from volley.errors import ConfigError, ShuffleRefused
from volley.ids import QueryId, StageId
from volley.rpc.shuffle_messages import KeepAlive, ServiceHealth
from volley.security import Security
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.placement import rank_servers
from volley.shuffle.service.server_state import ShuffleServerSettings, ShuffleServerState
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.services import serve_shuffle, service_store
from volley.testing.shuffle_configs import shuffle_config


@pytest.fixture
def server_state(tmp_path: Path) -> Iterator[ShuffleServerState]:
    with open_keeper(tmp_path) as found:
        yield found


def test_a_word_of_another_version_is_refused(tmp_path: Path) -> None:
    with serve_shuffle(tmp_path) as (server,):
        client = Security().connect(server.address)
        body = json.dumps({"version": 99, "message": {"$": "AskHealth"}}).encode()
        (reply,) = client.do_action(flight.Action("health", body))
        answer = json.loads(reply.body.to_pybytes())["message"]
        assert answer["$"] == "Refused"
        assert "protocol 99" in answer["message"]
        assert "same version" in answer["message"] or "speaks" in answer["message"]
        with pytest.raises(flight.FlightError, match="protocol 99"):
            client.do_get(flight.Ticket(body)).read_all()


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00{}"])
@pytest.mark.parametrize("action", ["push", "commit", "nothing"])
def test_nonsense_is_refused(tmp_path: Path, action: str, body: bytes) -> None:
    with serve_shuffle(tmp_path) as (server,):
        (reply,) = Security().connect(server.address).do_action(flight.Action(action, body))
        assert json.loads(reply.body.to_pybytes())["message"]["$"] == "Refused"


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".", "x" * 65])
def test_a_query_whose_name_is_no_directory_is_refused(server_state: ShuffleServerState, name: str) -> None:
    assert (
        code_of(lambda: server_state.keep_alive(KeepAlive("x", (QueryId(name),)))) == "SHUFFLE_UNKNOWN_QUERY"
    )


def test_two_servers_do_not_share_a_directory(tmp_path: Path) -> None:
    with serve_shuffle(tmp_path), pytest.raises(ConfigError, match="in use"):
        ShuffleServerState("other", ShuffleServerSettings((tmp_path / "s0",), 1))


def test_owners_move_only_from_a_server_that_has_gone() -> None:
    stage = StageId(QUERY, 0)
    servers = [f"host{number}:1" for number in range(5)]
    before = {partition: rank_servers(servers, stage, partition)[:2] for partition in range(200)}
    after = {partition: rank_servers(servers[:-1], stage, partition)[:2] for partition in range(200)}
    for partition, owners in before.items():
        if servers[-1] not in owners:
            assert after[partition] == owners
    counts = [sum(server in owners for owners in before.values()) for server in servers]
    assert min(counts) > 200 * 2 / 5 / 2


class TestDaemon:
    @pytest.fixture
    def daemon(self, tmp_path: Path) -> Iterator[ServiceDaemon]:
        server_state = ShuffleServerSettings((tmp_path,), 2**26)
        settings = ServiceSettings("127.0.0.1", 0, server_state, metrics_port=0)
        daemon = ServiceDaemon(settings, Security("the token"))
        yield daemon
        daemon.close()

    def store(self, daemon: ServiceDaemon, token: str) -> ServiceStore:
        config = shuffle_config(servers=(daemon.address,), replicas=1)
        return ServiceStore(config, Security(token), memory_limit_bytes=2**26)

    def test_the_token_is_asked_for_on_every_call(self, daemon: ServiceDaemon) -> None:
        with pytest.raises(ShuffleRefused):
            self.store(daemon, "another").begin(QUERY)
        client = Security("another").connect(daemon.address)
        for action in ("keep", "reserve", "push", "commit", "abort", "release", "health", "drain"):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.do_action(flight.Action(action, b"")))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(flight.Ticket(b"")).read_all()

    def test_metrics(self, daemon: ServiceDaemon) -> None:
        store = self.store(daemon, "the token")
        store.begin(QUERY)
        block = written(store, batch_of(1))
        assert values(store, block) == [1]
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=120) as answer:
            text = answer.read().decode()
        found = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
        assert float(found["volley_shuffle_commits_total"]) == 1
        assert float(found["volley_shuffle_queries"]) == 1
        assert float(found["volley_shuffle_held_bytes"]) > 0
        assert "the token" not in text
        store.close()

    def test_a_draining_server_takes_no_new_attempts_and_serves_the_others(
        self, daemon: ServiceDaemon
    ) -> None:
        store = self.store(daemon, "the token")
        store.begin(QUERY)
        block = written(store, batch_of(1))
        sink = store.sink(attempt_id(1), 1)
        sink.write(0, numbers())
        # It has begun there when its first chunks arrive.
        eventually(lambda: daemon.server_state.health().attempts == 2)
        daemon.server_state.drain()
        (second,) = sink.commit()
        with pytest.raises(ShuffleRefused, match="takes no new attempts"):
            written(store, batch_of(3), task=2)
        assert values(store, block) == [1]
        assert len(values(store, second)) == MANY
        store.close()
        assert daemon.server_state.empty

    def test_status(self, daemon: ServiceDaemon) -> None:
        environment = {"VOLLEY_TOKEN": "the token", "COLUMNS": "200"}
        shown = CliRunner().invoke(cli, ["status", daemon.address], env=environment)
        assert "shuffle server" in shown.output
        assert "serving" in shown.output
        found = CliRunner().invoke(cli, ["status", daemon.address, "--json"], env=environment)
        assert json.loads(found.output)[daemon.address]["memory_limit_bytes"] == 2**26


def test_health_counts_what_is_held(tmp_path: Path) -> None:
    with serve_shuffle(tmp_path) as (server,):
        store = service_store([server.address], "q")
        written(store, batch_of(1))
        health = health_of(server.address, Security())
        assert isinstance(health, ServiceHealth)
        assert (health.applications, health.queries, health.committed) == (1, 1, 1)
        store.release(QUERY)
        assert store.held_bytes == 0
        store.close()
