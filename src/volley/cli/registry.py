# SPDX-License-Identifier: Apache-2.0
"""`volley registry`: runs a registry."""

from __future__ import annotations

import os
from pathlib import Path

import click

from volley.cli.daemon_options import Listening, listening_options
from volley.process.foreground import serve
from volley.registry.server import RegistryDaemon, RegistrySettings
from volley.rpc.control import Role

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--workers-file", type=_FILE, help="File for the addresses of workers.")
@click.option("--shuffle-servers-file", type=_FILE, help="File for the addresses of shuffle servers.")
@listening_options
def registry(listening: Listening, workers_file: Path | None, shuffle_servers_file: Path | None) -> None:
    """Run a registry, with which daemons register that nobody lists. It keeps files of their addresses.

    Run it on the driver's machine, or where sessions can read the files. A daemon that drains is taken off its list at
    once, and one that was lost after some seconds. Without the registry, sessions go on with the files.

    \b
    Example:
      volley registry --port 7000 --workers-file /run/volley/workers
      volley worker --register 127.0.0.1:7000
      spark.volley.transport=flight, spark.volley.workers=file:/run/volley/workers
    """
    chosen = {Role.WORKER: workers_file, Role.SHUFFLE_SERVER: shuffle_servers_file}
    files = {role: file.resolve() for role, file in chosen.items() if file is not None}
    if not files:
        raise click.UsageError("give --workers-file, --shuffle-servers-file or both")
    daemon = RegistryDaemon(
        RegistrySettings(
            host=listening.host,
            port=listening.port or 0,
            files=files,
            advertise=listening.advertise,
            require_client_certificate=listening.mutual_tls,
            insecure=listening.insecure,
        ),
        listening.security,
    )

    def announce() -> None:
        words = [f"registry {daemon.address}", *(f"{role}s in {file}" for role, file in files.items())]
        listening.announce({"address": daemon.address, "pid": os.getpid()}, words)

    serve(daemon, announce, listening.parent)
