"""`volley shuffle-service`: a daemon that keeps exchanged data after the workers have gone."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import click

from volley.cli.worker import bytes_option
from volley.foreground import serve
from volley.machine import available_memory_bytes
from volley.security import Security
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.keeper import LEASE_SECONDS, KeeperSettings
from volley.worker.budget import size
from volley.worker.daemon import check_directories


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@click.option("--advertise", default="", help="Host that others reach this one by, when it is not --host.")
@click.option(
    "--memory", callback=bytes_option, help="For chunks, such as 8g; default: half of what this machine has."
)
@click.option(
    "--dirs",
    "--dir",
    "directories",
    multiple=True,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where chunks and the journal are kept; repeatable, one a disk. Not shared with another server.",
)
@click.option(
    "--quota", callback=bytes_option, help="What one application may keep here, such as 100g; default: all."
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=LEASE_SECONDS,
    show_default=True,
    help="The data of a driver that is silent for so long is removed.",
)
@click.option(
    "--memory-commits",
    is_flag=True,
    help="Say yes to a commit while data is in memory alone: faster, and lost with this process.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics at http://host:port/metrics; default: not.",
)
@click.option(
    "--token-file", default="", help="Holds the token to ask for; otherwise VOLLEY_TOKEN in the environment."
)
@click.option("--tls-certificate", default="", help="This server's certificate (PEM). Set: it speaks TLS.")
@click.option("--tls-key", default="", help="The key of that certificate (PEM).")
@click.option("--tls-ca", default="", help="Certificates (PEM) that vouch for clients.")
@click.option("--mutual-tls", is_flag=True, help="Refuse clients without a certificate of that CA.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without token and TLS.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long to go on serving after SIGTERM.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it listens as one line of JSON.")
@click.option("--parent", type=int, hidden=True, help="End when this process does.")
def shuffle_service(
    host: str,
    port: int,
    advertise: str,
    memory: int | None,
    directories: tuple[Path, ...],
    quota: int | None,
    lease_seconds: float,
    memory_commits: bool,
    metrics_port: int | None,
    token_file: str,
    tls_certificate: str,
    tls_key: str,
    tls_ca: str,
    mutual_tls: bool,
    insecure: bool,
    drain_seconds: float,
    as_json: bool,
    parent: int | None,
) -> None:
    """A server that keeps exchanged data after the workers that wrote it have gone. It needs no Java.

    Several form a service. What was committed to one survives kill -9: start it again with the same directories.

    \b
    Example:
      volley shuffle-service --port 7171 --memory 8g --dirs /data1/shuffle --dirs /data2/shuffle
      spark.volley.shuffle.store=service, spark.volley.shuffle.service=127.0.0.1:7171
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    check_directories(directories)
    budget = memory or available_memory_bytes() // 2
    daemon = ServiceDaemon(
        ServiceSettings(
            host=host,
            port=port,
            keeper=KeeperSettings(
                tuple(directory.resolve() for directory in directories),
                budget,
                quota_bytes=quota or 0,
                lease_seconds=lease_seconds,
                in_memory_commits=memory_commits,
            ),
            advertise=advertise,
            metrics_port=metrics_port,
            drain_seconds=drain_seconds,
            require_client_certificate=mutual_tls,
            insecure=insecure,
        ),
        Security.read(token_file, tls_ca, tls_certificate, tls_key),
    )

    def announce() -> None:
        if as_json:
            ready = {"address": daemon.address, "pid": os.getpid(), "metrics_port": daemon.metrics_port}
            click.echo(json.dumps(ready))
            return
        health = daemon.keeper.health()
        click.echo(f"shuffle server {daemon.address}: memory {size(budget)}")
        if health.committed:
            click.echo(f"found {health.committed} committed attempts, {size(health.held_bytes)}")
        if daemon.metrics_port is not None:
            click.echo(f"metrics http://{host}:{daemon.metrics_port}/metrics")

    serve(daemon, announce, parent)
