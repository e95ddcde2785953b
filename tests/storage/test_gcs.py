# SPDX-License-Identifier: Apache-2.0
"""Scans of `gs://`: settings of the connector become those of a store, or a reason, and the rows are Spark's."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from volley.errors import DataError
from volley.rpc.codec import decode, encode
from volley.storage.access_tokens import AccessToken, Grant, Tokens, UserGrant
from volley.storage.gcs import map_settings
from volley.storage.objects import ObjectName, open_object
from volley.storage.registry import shared_stores
from volley.storage.s3a import Unmapped
from volley.storage.settings import GcsSettings, Hidden
from volley.testing.gcs import BUCKET, GcsServer, gcs_server, has_gcs_emulator, open_gcs
from volley.testing.mirrored_store import MirroredStore
from volley.testing.rows import assert_same_rows

USER = {
    "auth.type": "USER_CREDENTIALS",
    "auth.client.id": "me",
    "auth.client.secret": "hush",
    "auth.refresh.token": "again",
}
OPEN = {"auth.type": "UNAUTHENTICATED"}


def mapped(
    settings: dict[str, str], shared: dict[str, str] | None = None, bucket: str = "lake"
) -> tuple[GcsSettings, list[Grant]]:
    """The settings of a store, and what a token was asked for."""
    grants: list[Grant] = []

    def token_of(grant: Grant) -> AccessToken:
        grants.append(grant)
        return AccessToken("token of an hour", 3600)

    found = map_settings(
        bucket, settings, shared or {}, lambda name: False, token_of, lambda key, text: b"signed"
    )
    return found, grants


class TestSettings:
    def test_credentials(self, tmp_path: Path) -> None:
        anonymous, grants = mapped(OPEN)
        assert (anonymous.access_token, anonymous.endpoint, anonymous.tls, grants) == (None, "", True, [])
        user, (grant,) = mapped(USER)
        assert grant == UserGrant(
            "https://oauth2.googleapis.com/token", "me", Hidden("hush"), Hidden("again")
        )
        assert user.access_token is not None
        assert (user.access_token.value, user.expires_seconds) == ("token of an hour", 3600)
        key = {
            "client_email": "a@b",
            "private_key": "hush",
            "private_key_id": "k",
            "token_uri": "https://tokens",
        }
        (tmp_path / "key.json").write_text(json.dumps(key))
        of_file = {"auth.type": "service_account_json_keyfile"}
        of_file["auth.service.account.json.keyfile"] = str(tmp_path / "key.json")
        for own, shared in ((of_file, {}), ({}, of_file), (of_file, USER)):
            _, (grant,) = mapped(own, shared)
            assert grant.server == "https://tokens"
            assert "hush" not in repr(grant)
        _, (grant,) = mapped({**of_file, "token.server.url": "https://others"})
        assert grant.server == "https://others"
        for store in (anonymous, user):
            assert "token of" not in repr(store)
            assert decode(encode(store), GcsSettings) == store
        assert anonymous.id != user.id

    def test_place(self) -> None:
        for root in ("https://storage.googleapis.com/", "https://storage.googleapis.com"):
            assert mapped({**OPEN, "storage.root.url": root})[0] == mapped(OPEN)[0]
        other, _ = mapped({**OPEN, "storage.root.url": "http://127.0.0.1:9023/"})
        assert (other.endpoint, other.tls) == ("127.0.0.1:9023", False)

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({}, "auth.type is not set"),
            ({"auth.type": "COMPUTE_ENGINE"}, "is not UNAUTHENTICATED"),
            ({"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}, "json.keyfile is not set"),
            (
                {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": "/none"},
                "is not the key file",
            ),
            ({**USER, "auth.refresh.token": ""}, "auth.refresh.token is not set"),
            ({**OPEN, "encryption.key": "x"}, "encryption.key is not known"),
            (
                {**OPEN, "auth.impersonation.service.account": "x"},
                "impersonation.service.account is not known",
            ),
            ({**OPEN, "proxy.address": "x"}, "proxy.address is not known"),
            ({**OPEN, "requester.pays.mode": "AUTO"}, "requester.pays.mode is set"),
            ({**OPEN, "inputstream.support.gzip.encoding.enable": "true"}, "gzip.encoding.enable is set"),
            ({**OPEN, "storage.root.url": "https://host/path"}, "more than a host"),
        ],
    )
    def test_what_cannot_be_mapped_is_a_reason(self, settings: dict[str, str], reason: str) -> None:
        with pytest.raises(Unmapped, match=reason):
            mapped(settings)

    def test_shared_settings(self) -> None:
        with pytest.raises(
            Unmapped, match=r"google\.cloud\.auth\.impersonation\.service\.account is not known"
        ):
            mapped(OPEN, {"auth.impersonation.service.account": "x"})
        assert mapped(OPEN, {"bigdata.tuning": "x"})[0] == mapped(OPEN)[0]

    def test_performance_has_no_effect(self) -> None:
        assert mapped({**OPEN, "inputstream.fadvise": "RANDOM", "block.size": "1"})[0] == mapped(OPEN)[0]

    def test_unusual_names_are_a_reason(self) -> None:
        for bucket in ("", "A", "a/b", "user@lake"):
            with pytest.raises(Unmapped):
                mapped(OPEN, bucket=bucket)


# --------------------------------------------------------------------------------------------- tokens


class _TokenServer(BaseHTTPRequestHandler):
    """Gives a new token for each request, or refuses."""

    asked: ClassVar[list[dict[str, list[str]]]] = []
    lifetime_seconds: ClassVar[int] = 3600
    refuses: ClassVar[bool] = False

    def do_POST(self) -> None:
        self.asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        answer = {"access_token": f"token{len(self.asked)}", "expires_in": self.lifetime_seconds}
        body = json.dumps({"error": "hush"} if self.refuses else answer).encode()
        self.send_response(401 if self.refuses else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def token_server() -> Iterator[str]:
    _TokenServer.asked.clear()
    _TokenServer.refuses, _TokenServer.lifetime_seconds = False, 3600
    with serving(_TokenServer) as address:
        yield f"http://{address}/token"


def test_tokens_are_kept_until_they_expire(token_server: str) -> None:
    tokens = Tokens()
    grant = UserGrant(token_server, "me", Hidden("hush"), Hidden("again"))
    first = tokens.get(grant)
    assert first.text == "token1"
    assert abs(first.expires_seconds - time.time() - 3600) < 600
    assert tokens.get(UserGrant(token_server, "me", Hidden("hush"), Hidden("again"))) == first
    assert _TokenServer.asked == [
        {
            "grant_type": ["refresh_token"],
            "client_id": ["me"],
            "client_secret": ["hush"],
            "refresh_token": ["again"],
        }
    ]
    _TokenServer.lifetime_seconds = 60
    other = UserGrant(token_server, "you", Hidden("hush"), Hidden("again"))
    assert tokens.get(other).text == "token2"
    assert tokens.get(other).text == "token3"
    assert "token" not in repr(first)


def test_a_server_that_gives_no_token_is_a_reason(token_server: str) -> None:
    _TokenServer.refuses = True
    for server in (token_server, "http://127.0.0.1:1/", "file:///etc/passwd"):
        with pytest.raises(Unmapped, match="token server") as raised:
            Tokens().get(UserGrant(server, "me", Hidden("hush"), Hidden("again")))
        assert "hush" not in str(raised.value)


# --------------------------------------------------------------------------------------------- scans


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    if not has_gcs_emulator():
        pytest.skip("needs gcp-storage-emulator")
    with gcs_server() as running:
        yield running


@pytest.fixture(scope="module")
def gcs(spark_session: SparkSession, server: GcsServer) -> Iterator[MirroredStore]:
    found = open_gcs(spark_session, server)
    yield found
    found.close()


ROWS = pa.table({"n": range(1000), "s": [None if n % 7 == 0 else f"s{n % 13}" for n in range(1000)]})


def test_scans_are_native(distributed: SparkSession, gcs: MirroredStore, tmp_path: Path) -> None:
    spark = distributed
    for day in (1, 2):
        (tmp_path / "t" / f"day={day} é").mkdir(parents=True)
        pq.write_table(
            ROWS.slice(100 * day), tmp_path / "t" / f"day={day} é" / "a b%.parquet", row_group_size=100
        )
    (tmp_path / "c.csv").write_text("1,a\n2,\n,b\n")
    spark.read.parquet(gcs.put(tmp_path / "t")).createOrReplaceTempView("t")
    spark.read.csv(gcs.put(tmp_path / "c.csv"), schema="n int, s string").createOrReplaceTempView("c")
    assert_same_rows(spark, "SELECT day, s, count(*), sum(n) FROM t WHERE n > 150 GROUP BY day, s")
    assert_same_rows(spark, "SELECT t.n, c.s FROM t JOIN c ON t.n % 3 = c.n")
    assert_same_rows(spark, "SELECT count(*) FROM t")
    # Spark writes.
    spark.table("c").write.csv(gcs.put(tmp_path / "c.csv") + "-new")
    report = volley.last_query(spark)
    assert report is not None
    assert "gs: only Spark writes there" in str(report.reasons)


def test_large_objects(spark: SparkSession, gcs: MirroredStore, tmp_path: Path) -> None:
    """Read by ranges: these are larger than what is read whole. Some of the text is stored as a dictionary."""
    numbers = range(400_000)
    rows = pa.table(
        {
            "n": numbers,
            "s": [f"{n * 7919}" for n in numbers],
            "few": [None if n % 5 == 0 else f"é{n % 7}" for n in numbers],
            "u": pa.array([2**32 - 1 - n for n in numbers], pa.uint32()),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=100_000, compression="none")
    assert (tmp_path / "a.parquet").stat().st_size > 3 * 2**20
    spark.read.parquet(gcs.put(tmp_path / "a.parquet")).createOrReplaceTempView("large")
    assert_same_rows(spark, "SELECT count(*), sum(n), max(s) FROM large WHERE n > 150000")
    assert_same_rows(spark, "SELECT few, count(*), min(s) FROM large GROUP BY few")
    assert_same_rows(spark, "SELECT count(*), min(u) FROM large WHERE u > 4294900000")


def test_what_is_not_as_planned_is_left_to_spark(
    spark: SparkSession, gcs: MirroredStore, tmp_path: Path
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    frame = spark.read.parquet(gcs.put(tmp_path / "a.parquet"))
    gcs.set({"fs.gs.encryption.key": "x"})
    (reason,) = volley.explain(frame).reasons
    assert reason.reason == "FILE_SYSTEM_NOT_SUPPORTED"
    assert "fs.gs.encryption.key is not known" in str(reason)
    gcs.set({"fs.gs.encryption.key": None})
    assert_same_rows(spark, frame.filter("n < 10"))
    # An object that is replaced after Spark has listed it is not read, even if its size is the same.
    with gcs.objects.open_output_stream(f"{BUCKET}{tmp_path}/a.parquet") as stream:
        stream.write(b"x" * ((tmp_path / "a.parquet").stat().st_size + 1))
    assert frame.filter("n < 20").count() == 20
    report = volley.last_query(spark)
    assert report is not None
    assert [reason.reason for reason in report.reasons] == ["REPLAYED_ON_SPARK"]


def test_keys_of_service_accounts(
    spark: SparkSession, gcs: MirroredStore, server: GcsServer, token_server: str, tmp_path: Path
) -> None:
    """The driver signs with the key, which stays with it, and requests for objects carry the token."""
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-out", tmp_path / "key.pem"],
        check=True,
        capture_output=True,
    )
    key = {"client_email": "a@b", "private_key_id": "k", "private_key": (tmp_path / "key.pem").read_text()}
    (tmp_path / "key.json").write_text(json.dumps({**key, "token_uri": token_server}))
    pq.write_table(ROWS, tmp_path / "a.parquet")
    frame = spark.read.parquet(gcs.put(tmp_path / "a.parquet"))
    seen: list[str | None] = []

    class Watching(BaseHTTPRequestHandler):
        """Remembers who asks, and refuses."""

        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    before = f"http://127.0.0.1:{server.port}/"
    with serving(Watching) as address:
        gcs.set(
            {
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": str(tmp_path / "key.json"),
                "fs.gs.storage.root.url": f"http://{address}/",
            }
        )
        assert frame.filter("n < 30").count() == 30
        report: Any = volley.last_query(spark)
        assert report.engine == "spark"
        assert "token1" not in str(report.to_dict())
        gcs.set({"fs.gs.storage.root.url": before})
        assert_same_rows(spark, frame.filter("n < 40"))
        gcs.set({"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.auth.service.account.json.keyfile": None})
    assert set(seen) == {"Bearer token1"}
    assert len(_TokenServer.asked) == 1
    _check_assertion(_TokenServer.asked[0]["assertion"][0], token_server, tmp_path)


def _check_assertion(assertion: str, audience: str, directory: Path) -> None:
    text, _, signature = assertion.rpartition(".")
    header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in text.split("."))
    assert header == {"alg": "RS256", "typ": "JWT", "kid": "k"}
    assert (claims["iss"], claims["aud"], claims["exp"] - claims["iat"]) == ("a@b", audience, 3600)
    (directory / "signature").write_bytes(base64.urlsafe_b64decode(signature + "=="))
    (directory / "text").write_text(text)
    options = ["-sha256", "-prverify", "key.pem", "-signature", "signature", "text"]
    subprocess.run(["openssl", "dgst", *options], cwd=directory, check=True, capture_output=True)


def test_encoded_objects_are_refused(server: GcsServer) -> None:
    files = server.connect()
    with files.open_output_stream(f"{BUCKET}/e", metadata={"Content-Encoding": "gzip"}) as stream:
        stream.write(b"hi")
    store, _ = mapped({**OPEN, "storage.root.url": f"http://127.0.0.1:{server.port}"})
    shared_stores().add((store,))
    with (
        pytest.raises(DataError, match="encoded as gzip"),
        open_object(ObjectName(store.id, "gs://lake/e", 2, 0)),
    ):
        pass
