# SPDX-License-Identifier: Apache-2.0
"""Who is let in, who is not, and what those learn."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from helpers.certificates import make_certificates
from volley.config import Config
from volley.errors import ConfigError, NoWorkers
from volley.ids import QueryId
from volley.rpc.codec import encode
from volley.rpc.control import RESULT_TICKET, AskHealth
from volley.rpc.handshake import Hello, Identity, to_json
from volley.security import Security, Tls, is_loopback
from volley.shuffle.factory import ShuffleSettings
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.server_state import ShuffleServerSettings
from volley.shuffle.service.store import ServiceStore
from volley.testing.contracts import attempt_id, batch_of
from volley.testing.shuffle_configs import shuffle_config
from volley.transport.fleet import Fleet
from volley.transport.spark_control import Control
from volley.user_token import ensure_user_token, token_file_for
from volley.worker.daemon import Daemon, DaemonSettings

TOKEN = "correct-horse-battery-staple"


def settings_of(directory: Path, **changes: Any) -> DaemonSettings:
    return DaemonSettings(
        **{
            "host": "127.0.0.1",
            "port": 0,
            "cores": 1,
            "slots": 1,
            "memory_bytes": 8 << 30,  # this process is much larger than a worker
            "directories": (directory,),
            "shuffle": ShuffleSettings.of(Config.read({})),
            **changes,
        }
    )


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def make(security: Security, **changes: Any) -> Daemon:
        daemons.append(Daemon(settings_of(tmp_path, **changes), security))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.close()


def health(address: str, security: Security) -> list[Any]:
    options = flight.FlightCallOptions(timeout=120)
    return list(security.connect(address).do_action(flight.Action("health", encode(AskHealth())), options))


class TestToken:
    def test_the_right_one_is_let_in(self, make_daemon: Callable[..., Daemon]) -> None:
        daemon = make_daemon(Security(TOKEN))
        assert health(daemon.address, Security(TOKEN))

    @pytest.mark.parametrize("shown", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
    def test_every_call_asks_for_it_and_a_refusal_says_nothing(
        self, make_daemon: Callable[..., Daemon], shown: str | None
    ) -> None:
        daemon = make_daemon(Security(TOKEN))
        client = Security(shown).connect(daemon.address)
        hello = to_json(Hello(Identity("x", 0, "", ""), "x"))
        calls: list[Callable[[], Any]] = [
            lambda: list(client.do_action(flight.Action("health", encode(AskHealth())))),
            lambda: list(client.do_action(flight.Action("hello", hello))),
            lambda: list(client.do_action(flight.Action("no such action", b""))),
            lambda: client.do_get(flight.Ticket(RESULT_TICKET)).read_all(),
            lambda: client.do_get(flight.Ticket(b"anything")).read_all(),
            lambda: list(client.list_flights()),
            lambda: list(client.list_actions()),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_path("x")),
        ]
        messages = set()
        for call in calls:
            with pytest.raises(flight.FlightUnauthenticatedError) as refused:
                call()
            # What follows is the client's own.
            messages.add(str(refused.value).partition(". gRPC client debug context")[0])
        # The same for all, whatever was asked and whatever was shown.
        assert messages == {"refused. Detail: Unauthenticated"}

    def test_two_tokens_are_no_token(self, make_daemon: Callable[..., Daemon]) -> None:
        daemon = make_daemon(Security(TOKEN))
        twice = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(
                Security("other")
                .connect(daemon.address)
                .do_action(flight.Action("health", encode(AskHealth())), twice)
            )

    def test_a_driver_is_told_that_its_token_is_wrong(self, make_daemon: Callable[..., Daemon]) -> None:
        daemon = make_daemon(Security(TOKEN))
        fleet = Fleet([daemon.address], Security("wrong"), 5.0)
        with pytest.raises(NoWorkers, match="rejected this driver's token"):
            fleet.wait()
        fleet.close()

    def test_it_comes_from_a_file_or_the_environment(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text(f"{TOKEN}\n")
        file.chmod(0o600)
        other = {"VOLLEY_TOKEN": "other"}
        assert Security.read(str(file), environment=other).token == TOKEN
        assert Security.read(environment=other).token == "other"
        assert Security.read(environment={}).token is None

    @pytest.mark.parametrize(
        ("text", "mode", "said"), [(TOKEN, 0o644, "open to other users"), (" \n", 0o600, "empty")]
    )
    def test_a_bad_file_is_an_error(self, tmp_path: Path, text: str, mode: int, said: str) -> None:
        file = tmp_path / "token"
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(ConfigError, match=said) as error:
            Security.read(str(file))
        assert TOKEN not in str(error.value)

    def test_a_missing_file_is_an_error_and_not_an_open_door(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            Security.read(str(tmp_path / "nothing"))

    def test_secrets_are_not_shown(self) -> None:
        text = repr(Security(TOKEN, Tls(b"ca", b"certificate", b"private")))
        assert TOKEN not in text
        assert "private" not in text


class TestOwnToken:
    """The token of daemons that were given none."""

    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.delenv("VOLLEY_TOKEN", raising=False)
        return tmp_path / "state"

    def test_it_is_made_once_and_only_its_owner_can_read_it(self, state: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            (path,) = set(threads.map(lambda _: ensure_user_token(), range(8)))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [file.name for file in path.parent.iterdir()] == ["token"]
        token = Security.read(str(path)).token
        assert token is not None
        assert len(token) == 64
        assert Security.read(str(ensure_user_token())).token == token

    def test_clients_on_this_machine_present_it_and_to_nobody_else(self) -> None:
        assert token_file_for(["127.0.0.1:1"], "") == ""
        path = str(ensure_user_token())
        assert token_file_for(["127.0.0.1:1", "localhost:2", "[::1]:3"], "") == path
        assert token_file_for(["127.0.0.1:1", "192.0.2.1:1"], "") == ""
        assert token_file_for(["127.0.0.1:1"], "given") == "given"
        assert token_file_for(["127.0.0.1:1"], "", {"VOLLEY_TOKEN": "x"}) == ""
        assert token_file_for([], "") == ""

    def test_a_link_or_a_file_in_a_public_place_is_refused(self, state: Path, tmp_path: Path) -> None:
        path = ensure_user_token()
        target = tmp_path / "elsewhere"
        path.rename(target)
        path.symlink_to(target)
        with pytest.raises(ConfigError, match="no file of this user"):
            ensure_user_token()
        with pytest.raises(ConfigError, match="no file of this user"):
            token_file_for(["127.0.0.1:1"], "")
        path.unlink()
        path.parent.chmod(0o777)
        with pytest.raises(ConfigError, match="no file of this user"):
            ensure_user_token()

    def test_a_place_that_cannot_be_written_is_a_clear_error(self, state: Path) -> None:
        state.write_text("a file")
        with pytest.raises(ConfigError, match="no token could be kept"):
            ensure_user_token()


class TestListening:
    @pytest.mark.parametrize(
        ("host", "loopback"),
        [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
    )
    def test_loopback_is_recognised(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback

    @pytest.mark.parametrize(
        "security", [Security(), Security(TOKEN), Security(None, Tls(b"a", b"b", b"c"))], ids=str
    )
    def test_beyond_loopback_both_token_and_tls_are_asked_for(
        self, security: Security, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="no token or no TLS"):
            Daemon(settings_of(tmp_path, host="0.0.0.0", advertise="127.0.0.1"), security)

    def test_unless_somebody_says_insecure(self, make_daemon: Callable[..., Daemon]) -> None:
        daemon = make_daemon(Security(TOKEN), host="0.0.0.0", advertise="127.0.0.1", insecure=True)
        assert health(daemon.address, Security(TOKEN))

    def test_without_a_token_loopback_is_open(self, make_daemon: Callable[..., Daemon]) -> None:
        assert health(make_daemon(Security()).address, Security())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class TestTls:
    def security(self, certificates: Path, ca: str = "", member: str = "", token: str = TOKEN) -> Security:
        files = [f"{ca}.pem" if ca else "", *((f"{member}.pem", f"{member}.key") if member else ("", ""))]
        ca_file, certificate_file, key_file = (str(certificates / file) if file else "" for file in files)
        return Security.read("", ca_file, certificate_file, key_file, environment={"VOLLEY_TOKEN": token})

    def test_a_client_that_trusts_the_ca_is_let_in(
        self, make_daemon: Callable[..., Daemon], certificates: Path
    ) -> None:
        daemon = make_daemon(self.security(certificates, "ca", "member"))
        assert health(daemon.address, self.security(certificates, "ca"))
        with pytest.raises(flight.FlightUnauthenticatedError):
            health(daemon.address, self.security(certificates, "ca", token="wrong"))

    def test_a_client_does_not_talk_to_a_stranger(
        self, make_daemon: Callable[..., Daemon], certificates: Path
    ) -> None:
        daemon = make_daemon(self.security(certificates, "ca", "member"))
        with pytest.raises(flight.FlightUnavailableError):
            health(daemon.address, self.security(certificates, "foreign-ca"))

    def test_plain_text_is_not_answered(self, make_daemon: Callable[..., Daemon], certificates: Path) -> None:
        daemon = make_daemon(self.security(certificates, "ca", "member"))
        with pytest.raises(flight.FlightUnavailableError):
            health(daemon.address, Security(TOKEN))

    def test_mutual_tls_asks_for_a_certificate_of_the_ca(
        self, make_daemon: Callable[..., Daemon], certificates: Path
    ) -> None:
        daemon = make_daemon(self.security(certificates, "ca", "member"), require_client_certificate=True)
        assert health(daemon.address, self.security(certificates, "ca", "member"))
        for stranger in (self.security(certificates, "ca"), self.security(certificates, "ca", "foreign")):
            with pytest.raises(flight.FlightUnavailableError):
                health(daemon.address, stranger)

    def test_a_fleet_speaks_tls(self, make_daemon: Callable[..., Daemon], certificates: Path) -> None:
        security = self.security(certificates, "ca", "member")
        daemon = make_daemon(security, require_client_certificate=True)
        fleet = Fleet([daemon.address], security, 5.0)
        fleet.wait()
        assert fleet.peers[0].info is not None
        fleet.close()

    def test_the_driver_speaks_tls_to_executors(self, certificates: Path) -> None:
        security = self.security(certificates, "ca", "member")
        control = Control("127.0.0.1", "127.0.0.1", security, insecure=False, on_sidecar=print)
        try:
            # The driver answers that it does not support this call.
            assert health(control.address, self.security(certificates, "ca"))
            with pytest.raises(flight.FlightUnauthenticatedError):
                health(control.address, self.security(certificates, "ca", token="wrong"))
            for stranger in (self.security(certificates, "foreign-ca"), Security(TOKEN)):
                with pytest.raises(flight.FlightUnavailableError):
                    health(control.address, stranger)
        finally:
            control.close()

    def test_a_shuffle_server_speaks_tls(self, tmp_path: Path, certificates: Path) -> None:
        settings = ServiceSettings(
            "127.0.0.1", 0, ShuffleServerSettings((tmp_path,), 2**26), require_client_certificate=True
        )
        member = self.security(certificates, "ca", "member")
        server = ServiceDaemon(settings, member)
        try:
            assert health(server.address, member)
            for stranger in (self.security(certificates, "ca"), Security(TOKEN)):
                with pytest.raises(flight.FlightUnavailableError):
                    health(server.address, stranger)
            config = shuffle_config(servers=(server.address,), replicas=1)
            store = ServiceStore(config, member, memory_limit_bytes=2**26)
            store.begin(QueryId("q"))
            sink = store.sink(attempt_id(), 1)
            sink.write(0, batch_of(1, 2))
            (block,) = sink.commit()
            assert [batch.num_rows for batch in store.read(block)] == [2]
            store.close()
        finally:
            server.close()

    def test_a_shuffle_server_is_not_open_to_the_network(self, tmp_path: Path) -> None:
        settings = ServiceSettings("0.0.0.0", 0, ShuffleServerSettings((tmp_path,), 2**26), advertise="here")
        with pytest.raises(ConfigError, match="no token or no TLS"):
            ServiceDaemon(settings, Security(TOKEN))

    def test_a_certificate_needs_its_key(self, certificates: Path) -> None:
        with pytest.raises(ConfigError, match="needs its key"):
            Security.read("", "", str(certificates / "member.pem"), "")

    def test_mutual_tls_needs_a_ca(self, certificates: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="CA"):
            Daemon(
                settings_of(tmp_path, require_client_certificate=True),
                self.security(certificates, "", "member"),
            )
