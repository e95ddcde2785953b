# SPDX-License-Identifier: Apache-2.0
"""The process of `volley connect-server`: Spark, its Connect server on loopback, and the proxy that clients reach."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from pyspark.sql import SparkSession

from volley.connect_server.backend import Backend
from volley.connect_server.operations import Operations
from volley.connect_server.proxy import Proxy
from volley.errors import ConfigError, VersionNotSupported
from volley.observe.history_writer import flush_history
from volley.option_values import parse_bytes
from volley.rpc.addresses import address_of
from volley.security import Security
from volley.session.enable import enable
from volley.spark_versions.registry import current

_log = logging.getLogger(__name__)

# Every stream that a client reads has a thread. Threads start on demand.
_CALLS = 256
_QUERIES = 64

# As Spark's own server: estimates of a batch's size are lower than what is sent.
_BATCH_SHARE = 0.7
_SWEEP_SECONDS = 10.0
# The shortest that Spark's own server tolerates. PySpark's client pings once a minute.
_PING_INTERVAL_MS = 10_000
# Clients send local data in requests of up to this size.
_REQUEST_BYTES = "134217728"


@dataclass(frozen=True)
class ConnectServerSettings:
    host: str = "127.0.0.1"
    port: int = 15002
    require_client_certificate: bool = False
    insecure: bool = False
    drain_seconds: float = 30.0


class ConnectServer:
    """Serves from construction until `close`. It does not own the Spark session, whose application it serves."""

    def __init__(self, spark: SparkSession, settings: ConnectServerSettings, security: Security) -> None:
        security.check_listening(settings.host, settings.insecure)
        credentials = _credentials(security, settings.require_client_certificate)
        if not current().has_connect_server:
            raise VersionNotSupported(
                f"PySpark {current().release} comes without a Connect server.",
                hint="Clients of any release can use a server of a newer one: pip install 'pyspark>=4'.",
            )
        enable(spark)
        self._settings = settings
        self._stopped = threading.Event()
        self._backend = Backend(spark.sparkContext)
        self._operations = Operations()
        self._queries = ThreadPoolExecutor(_QUERIES, "volley-connect-query")
        proxy = Proxy(
            self._backend,
            self._operations,
            self._queries,
            token=security.token,
            batch_bytes=int(_BATCH_SHARE * self._bytes("spark.connect.grpc.arrow.maxBatchSize", "4m")),
            stream_seconds=self._seconds("spark.connect.execute.reattachable.senderMaxStreamDuration", "2m"),
        )
        self._server = grpc.server(
            ThreadPoolExecutor(_CALLS, "volley-connect"),
            handlers=[proxy],
            options=[
                ("grpc.so_reuseport", 0),
                (
                    "grpc.max_receive_message_length",
                    self._bytes("spark.connect.grpc.maxInboundMessageSize", _REQUEST_BYTES),
                ),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 1 << 20),
                ("grpc.absolute_max_metadata_size", 1 << 24),
                *self._keep_alive(),
            ],
        )
        self.port = self._listen(credentials)
        self._server.start()
        threading.Thread(target=self._sweep, name="volley-connect-sweep", daemon=True).start()

    @property
    def address(self) -> str:
        return address_of(self._settings.host, self.port)

    @property
    def is_closing(self) -> bool:
        return self._stopped.is_set()

    def drain(self, hurry: threading.Event) -> None:
        """Refuse new calls, and wait for those that run."""
        ended = self._server.stop(self._settings.drain_seconds)
        while not ended.wait(0.1):
            if hurry.is_set():
                return

    def close(self) -> None:
        """Stop everything that runs for clients, and Spark's Connect server."""
        self._stopped.set()
        for operation in self._operations.all():
            self._operations.remove(operation)
        self._server.stop(None).wait()
        self._queries.shutdown(wait=False, cancel_futures=True)
        self._backend.close()
        flush_history()

    def _listen(self, credentials: Any) -> int:
        wanted = address_of(self._settings.host, self._settings.port)
        try:
            bound = (
                self._server.add_insecure_port(wanted)
                if credentials is None
                else self._server.add_secure_port(wanted, credentials)
            )
        except RuntimeError:
            bound = 0
        if not bound:
            self._backend.close()
            raise ConfigError(
                f"{wanted} cannot be listened on; perhaps another process does.",
                hint="Choose another --port; 0 is any free one.",
            )
        return int(bound)

    def _sweep(self) -> None:
        limit = self._seconds("spark.connect.execute.manager.detachedTimeout", "5m")
        while not self._stopped.wait(min(_SWEEP_SECONDS, limit)):
            self._operations.sweep(limit)

    def _keep_alive(self) -> list[tuple[str, int]]:
        """What Spark's own server does about pings, those of clients and its own."""
        # A client that waits for a long query, or for its user, sends nothing else, and gRPC would hang up after a few.
        options = [
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS),
        ]
        if self._backend.setting("spark.connect.grpc.keepAlive.enabled", "true") != "true":
            return options
        seconds = self._seconds("spark.connect.grpc.keepAlive.time", "60s")
        timeout_seconds = self._seconds("spark.connect.grpc.keepAlive.timeout", "20s")
        return [
            *options,
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_time_ms", int(seconds * 1000)),
            ("grpc.keepalive_timeout_ms", int(timeout_seconds * 1000)),
        ]

    def _bytes(self, key: str, default: str) -> int:
        return parse_bytes(self._backend.setting(key, default))

    def _seconds(self, key: str, default: str) -> float:
        jvm: Any = self._backend.context._jvm
        unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        text = self._backend.setting(key, default)
        return float(jvm.org.apache.spark.network.util.JavaUtils.timeStringAs(text, unit)) / 1000


class ConnectDaemon:
    """A server in a process of its own, which ends when Spark's JVM does."""

    def __init__(self, spark: SparkSession, server: ConnectServer) -> None:
        self._spark = spark
        self._server = server
        gateway: Any = spark.sparkContext._gateway
        self._java = gateway.proc
        threading.Thread(target=self._watch, name="volley-connect-jvm", daemon=True).start()

    def drain(self, hurry: threading.Event) -> None:
        self._server.drain(hurry)

    def close(self) -> None:
        self._server.close()
        self._spark.stop()
        # The JVM ends when its standard input is closed.
        self._java.stdin.close()
        self._java.wait()

    def _watch(self) -> None:
        self._java.wait()
        if not self._server.is_closing:
            _log.error("Spark's JVM has ended, and so does this process")
            os._exit(1)


def _credentials(security: Security, require_client_certificate: bool) -> Any:
    """The gRPC credentials of a server with TLS; None without TLS."""
    tls = security.tls
    if require_client_certificate and (tls is None or tls.ca is None):
        raise ConfigError("mutual TLS needs the CA that signs the certificates of clients.")
    if tls is None:
        return None
    if tls.certificate is None:
        raise ConfigError("a server with TLS needs a certificate and its key.")
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)],
        tls.ca if require_client_certificate else None,
        require_client_certificate,
    )
