# SPDX-License-Identifier: Apache-2.0
"""Scans of `abfss://`: settings of an account become those of a store, or a reason, and the rows are Spark's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import volley
from volley.errors import DataError
from volley.rpc.codec import decode, encode
from volley.storage.abfs import map_settings
from volley.storage.objects import ObjectName, object_version, open_object
from volley.storage.registry import shared_stores
from volley.storage.s3a import Unmapped
from volley.storage.settings import AzureSettings
from volley.testing.azure import ACCOUNT, CONTAINER, Account, azure_server, azurite_program, open_abfs
from volley.testing.mirrored_store import MirroredStore
from volley.testing.rows import assert_same_rows

HOST = "acct.dfs.core.windows.net"
KEY = {f"account.key.{HOST}": "aHVzaA=="}
OAUTH = {
    "account.auth.type": "OAuth",
    "account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "account.oauth2.client.endpoint": "https://login.microsoftonline.com/11-22/oauth2/token",
    "account.oauth2.client.id": "me",
    "account.oauth2.client.secret": "hush",
}


def mapped(settings: dict[str, str], scheme: str = "abfss", authority: str = f"lake@{HOST}") -> AzureSettings:
    return map_settings(scheme, authority, settings, lambda name: False)


class TestSettings:
    def test_credentials(self) -> None:
        found = mapped(KEY)
        assert (found.account, found.endpoint, found.tls) == ("acct", "", True)
        assert found.account_key is not None
        assert found.account_key.value == "aHVzaA=="
        other = mapped({**KEY, "account.key.other.dfs.core.windows.net": "bm8=", "account.key": "bm8="})
        assert other == found
        signed = mapped({f"account.auth.type.{HOST}": "SAS", "sas.fixed.token": "?sig=hush"})
        assert signed.sas_token is not None
        assert signed.sas_token.value == "sig=hush"
        client = mapped(OAUTH)
        assert client.client_secret is not None
        assert (client.tenant_id, client.client_id, client.client_secret.value) == ("11-22", "me", "hush")
        for store in (found, signed, client):
            assert "hush" not in repr(store)
            assert "aHVzaA" not in repr(store)
            assert decode(encode(store), AzureSettings) == store
        assert len({found.id, signed.id, client.id}) == 3

    def test_place(self) -> None:
        assert mapped(KEY, scheme="abfs").tls
        assert not mapped({**KEY, "always.use.https": "false"}, scheme="abfs").tls
        assert mapped({**KEY, "always.use.https": "false"}).tls
        assert mapped({**KEY, "abfs.endpoint": "127.0.0.1:10000"}).endpoint == "127.0.0.1:10000"
        path = ObjectName("s", f"abfss://lake@{HOST}/a b/c@d.parquet", 1, 1)
        assert path.key == "lake/a b/c@d.parquet"
        assert ObjectName("s", "s3a://bucket/a@b/c", 1, 1).key == "bucket/a@b/c"

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({}, "account.key is not set"),
            ({"account.auth.type": "SAS"}, "sas.fixed.token is not set"),
            ({"account.auth.type": "Custom"}, "is not SharedKey"),
            ({**OAUTH, "account.oauth.provider.type": "x.MsiTokenProvider"}, "ClientCredsTokenProvider"),
            ({**OAUTH, "account.oauth2.client.endpoint": "https://login.example.com/t"}, "that of a tenant"),
            (
                {**KEY, "encryption.context.provider.type": "x"},
                "encryption.context.provider.type is not known",
            ),
            ({**KEY, f"account.keyprovider.{HOST}": "x.Shell"}, "account.keyprovider is not known"),
            ({**KEY, "abfs.endpoint": "elsewhere"}, "not an address"),
        ],
    )
    def test_what_cannot_be_mapped_is_a_reason(self, settings: dict[str, str], reason: str) -> None:
        with pytest.raises(Unmapped, match=reason):
            mapped(settings)

    def test_unusual_names_are_a_reason(self) -> None:
        for authority in (HOST, "lake@acct.dfs.core.chinacloudapi.cn", "Lake_1@" + HOST, "lake@a.b"):
            with pytest.raises(Unmapped):
                mapped(KEY, authority=authority)

    def test_performance_has_no_effect(self) -> None:
        plain = mapped(KEY)
        assert mapped({**KEY, "read.request.size": "1", "io.retry.max.retries": "9"}) == plain


class _Refusing(BaseHTTPRequestHandler):
    """An account that accepts no credentials, and remembers what it was asked for."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        pass


def signed_object(port: int, token: str) -> ObjectName:
    """The object `lake/a` of an account on loopback, whose settings have this token."""
    sas = {"account.auth.type": "SAS", "sas.fixed.token": token, "abfs.endpoint": f"127.0.0.1:{port}"}
    authority = f"lake@{ACCOUNT}.dfs.core.windows.net"
    store = mapped({**sas, "always.use.https": "false"}, "abfs", authority)
    shared_stores().add((store,))
    return ObjectName(store.id, f"abfs://{authority}/a", 2, 0)


@pytest.mark.parametrize("mark", ["", "?"])
def test_a_signature_is_sent_and_not_shown(mark: str) -> None:
    _Refusing.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        name = signed_object(server.server_address[1], f"{mark}sv=2021-06-08&sig=aHVzaA%3D%3D&se=2030&sp=r")
        with pytest.raises(DataError, match="403") as raised, open_object(name):
            pass
        server.shutdown()
    (asked,) = map(urlsplit, _Refusing.asked)
    assert asked.path == f"/{ACCOUNT}/lake/a"
    assert parse_qs(asked.query)["sig"] == ["aHVzaA=="]
    assert "aHVz" not in str(raised.value)


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    program = azurite_program()
    if program is None:
        pytest.skip("needs azurite-blob, of the npm package azurite")
    with azure_server(program) as running:
        yield running


@pytest.fixture(scope="module")
def abfs(spark_session: SparkSession, account: Account) -> Iterator[MirroredStore]:
    found = open_abfs(spark_session, account)
    yield found
    found.close()


def test_signatures_are_checked_by_the_account(account: Account) -> None:
    with account.connect().open_output_stream(f"{CONTAINER}/a") as stream:
        stream.write(b"hi")
    with open_object(signed_object(account.port, account.signature())) as found:
        assert found.read(0, 2) == b"hi"
    forged = account.signature(key="Zm9yZ2Vk")
    signature = parse_qs(forged)["sig"][0]
    with pytest.raises(DataError, match="403") as raised:
        object_version(signed_object(account.port, forged))
    for shown in (signature, quote(signature, safe="")):
        assert shown not in str(raised.value)


ROWS = pa.table({"n": range(1000), "s": [None if n % 7 == 0 else f"s{n % 13}" for n in range(1000)]})


def test_scans_are_native(spark: SparkSession, abfs: MirroredStore, tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / "t" / f"day={day} x").mkdir(parents=True)
        pq.write_table(
            ROWS.slice(100 * day), tmp_path / "t" / f"day={day} x" / "a.parquet", row_group_size=100
        )
    (tmp_path / "c.csv").write_text("1,a\n2,\n,b\n")
    spark.read.parquet(abfs.put(tmp_path / "t")).createOrReplaceTempView("t")
    spark.read.csv(abfs.put(tmp_path / "c.csv"), schema="n int, s string").createOrReplaceTempView("c")
    assert_same_rows(spark, "SELECT day, s, count(*), sum(n) FROM t WHERE n > 150 GROUP BY day, s")
    assert_same_rows(spark, "SELECT t.n, c.s FROM t JOIN c ON t.n % 3 = c.n")
    # Spark writes, with a committer of the connector, which these tests do not have.
    with pytest.raises(Py4JError, match="AzureManifestCommitterFactory"):
        spark.table("t").limit(1).write.mode("overwrite").csv(abfs.put(tmp_path) + "/new")


def test_what_azure_does_not_allow_is_left_to_spark(
    spark: SparkSession, abfs: MirroredStore, tmp_path: Path
) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    frame = spark.read.parquet(abfs.put(tmp_path / "a.parquet"))
    key = f"fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"
    before = abfs._settings.get(key)
    abfs.set({"fs.azure.client.correlationid.unknown": "x"})
    (reason,) = volley.explain(frame).reasons
    assert reason.reason == "FILE_SYSTEM_NOT_SUPPORTED"
    assert "correlationid.unknown is not known" in str(reason)
    abfs.set({"fs.azure.client.correlationid.unknown": None, key: "d3Jvbmc="})
    assert frame.count() == 1000
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert "REPLAYED_ON_SPARK" in [reason.reason for reason in report.reasons]
    abfs.set({key: before})
    assert frame.filter("n < 10").count() == 10
    # An object that is replaced after Spark has listed it is not read.
    with abfs.objects.open_output_stream(f"lake{tmp_path}/a.parquet") as stream:
        stream.write(b"x" * (tmp_path / "a.parquet").stat().st_size)
    assert frame.filter("n < 20").count() == 20
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
