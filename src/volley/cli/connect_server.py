# SPDX-License-Identifier: Apache-2.0
"""`volley connect-server`: runs a Spark Connect server whose sessions run natively."""

from __future__ import annotations

import importlib.util
import os

import click

from volley.cli.console import parse_settings
from volley.cli.daemon_options import CONNECT_TOKEN_VARIABLE, Listening, connect_listening_options
from volley.errors import ConfigError


@click.command()
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="An option of all sessions. Repeatable."
)
@connect_listening_options
def connect_server(listening: Listening, master: str, settings: tuple[str, ...]) -> None:
    """Run a Spark Connect server whose sessions run natively. Clients need nothing of Volley.

    It listens on loopback. Beyond it, clients need Connect's bearer token and TLS.

    \b
    Example:
      volley connect-server --conf spark.volley.fallback=warn
      SparkSession.builder.remote("sc://localhost").getOrCreate()
    """
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_status") is None:
        raise ConfigError(
            "a Spark Connect server needs gRPC.", hint="Run `pip install 'volley-spark[connect]'`."
        )
    listening.security.check_listening(listening.host, listening.insecure)
    from volley.bench.spark import QUIET, start_session
    from volley.connect_server.daemon import ConnectDaemon, ConnectServer, ConnectServerSettings
    from volley.process.foreground import serve

    options = {**QUIET, "spark.volley.enabled": "true", **parse_settings(settings)}
    spark = start_session("volley connect-server", master, options)
    server = ConnectServer(
        spark,
        ConnectServerSettings(
            host=listening.host,
            port=listening.port or 0,
            require_client_certificate=listening.mutual_tls,
            insecure=listening.insecure,
            drain_seconds=listening.drain_seconds,
        ),
        listening.security,
    )

    def announce() -> None:
        lines = [f"Spark {spark.version} with Volley: sc://{server.address}"]
        if listening.security.tls:
            lines.append("clients use TLS: /;use_ssl=true")
        if listening.security.token:
            lines.append(f"clients present the token: /;token=..., or the variable {CONNECT_TOKEN_VARIABLE}")
        listening.announce({"address": server.address, "pid": os.getpid()}, lines)

    serve(ConnectDaemon(spark, server), announce, listening.parent)
