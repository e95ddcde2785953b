# SPDX-License-Identifier: Apache-2.0
"""`volley shuffle-service`: runs a shuffle server."""

from __future__ import annotations

import os
from pathlib import Path

import click

from volley.cli.daemon_options import Listening, bytes_option, listening_options, register_option
from volley.process.foreground import serve
from volley.process.machine import available_memory_bytes
from volley.registry.registration import RegisteredDaemon, Registration
from volley.rpc.control import Role
from volley.shuffle.service.daemon import ServiceDaemon, ServiceSettings
from volley.shuffle.service.server_state import LEASE_SECONDS, ShuffleServerSettings
from volley.worker.budget import format_size
from volley.worker.daemon import check_directories


@click.command()
@click.option(
    "--memory", callback=bytes_option, help="Memory for chunks, such as 8g. Default: half of this machine's."
)
@click.option(
    "--dirs",
    "--dir",
    "directories",
    multiple=True,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for chunks and the journal, not shared with other servers. Repeatable, one per disk.",
)
@click.option("--quota", callback=bytes_option, help="Limit per application, such as 100g. Default: none.")
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=LEASE_SECONDS,
    show_default=True,
    help="Seconds without a renewal before a query's data is removed.",
)
@click.option(
    "--memory-commits",
    is_flag=True,
    help="Acknowledge commits before data is on disk: faster, but the data is lost with this process.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics at http://host:port/metrics. Default: no metrics.",
)
@register_option
@listening_options
def shuffle_service(
    listening: Listening,
    memory: int | None,
    directories: tuple[Path, ...],
    quota: int | None,
    lease_seconds: float,
    memory_commits: bool,
    metrics_port: int | None,
    registries: tuple[str, ...],
) -> None:
    """Run a shuffle server, which keeps exchanged data when the workers that wrote it have gone. It needs no Java.

    Several servers form a service. Committed data survives kill -9: restart the server with the same directories.

    \b
    Example:
      volley shuffle-service --port 7171 --memory 8g --dirs /data1/shuffle --dirs /data2/shuffle
      spark.volley.shuffle.store=service, spark.volley.shuffle.service=127.0.0.1:7171
    """
    check_directories(directories)
    budget = memory or available_memory_bytes() // 2
    daemon = ServiceDaemon(
        ServiceSettings(
            host=listening.host,
            port=listening.port or 0,
            server_state=ShuffleServerSettings(
                tuple(directory.resolve() for directory in directories),
                budget,
                quota_bytes=quota or 0,
                lease_seconds=lease_seconds,
                in_memory_commits=memory_commits,
            ),
            advertise=listening.advertise,
            metrics_port=metrics_port,
            drain_seconds=listening.drain_seconds,
            require_client_certificate=listening.mutual_tls,
            insecure=listening.insecure,
        ),
        listening.security,
    )

    def announce() -> None:
        health = daemon.server_state.health()
        words = [f"shuffle server {daemon.address}: memory {format_size(budget)}"]
        if health.committed:
            words.append(f"restored {health.committed} committed attempts, {format_size(health.held_bytes)}")
        if daemon.metrics_port is not None:
            words.append(f"metrics http://{listening.host}:{daemon.metrics_port}/metrics")
        listening.announce(
            {"address": daemon.address, "pid": os.getpid(), "metrics_port": daemon.metrics_port}, words
        )

    registration = Registration(registries, Role.SHUFFLE_SERVER, daemon.address, listening.security)
    serve(RegisteredDaemon(daemon, registration), announce, listening.parent)
