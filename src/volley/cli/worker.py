"""`volley worker`: a daemon that runs tasks."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from volley.cli.console import parse_settings
from volley.config import Config, parse_bytes
from volley.machine import available_cores, available_memory_bytes
from volley.security import Security
from volley.worker.daemon import Daemon, DaemonSettings, ShuffleSettings, check_directories, serve


def bytes_option(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0, the default, takes a free one."
)
@click.option("--advertise", default="", help="Host that others reach this one by, when it is not --host.")
@click.option(
    "--cores", type=click.IntRange(min=1), help="Cores that a task uses; default: all of this machine."
)
@click.option("--tasks", type=click.IntRange(min=1), help="Tasks at once; default: as many as cores.")
@click.option("--memory", callback=bytes_option, help="Such as 8g; default: 80% of what this machine has.")
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where exchanged data that does not fit into memory goes; repeatable. Default: the temporary directory.",
)
@click.option(
    "--token-file", default="", help="Holds the token to ask for; otherwise VOLLEY_TOKEN in the environment."
)
@click.option("--tls-certificate", default="", help="This worker's certificate (PEM). Set: it speaks TLS.")
@click.option("--tls-key", default="", help="The key of that certificate (PEM).")
@click.option("--tls-ca", default="", help="Certificates (PEM) that vouch for other workers and for clients.")
@click.option("--mutual-tls", is_flag=True, help="Refuse clients without a certificate of that CA.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without token and TLS.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long to finish what runs after SIGTERM.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A shuffle option; repeatable.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print where it listens, and its budget, as one line of JSON."
)
@click.option("--parent", type=int, hidden=True, help="End when this process does.")
def worker(
    host: str,
    port: int | None,
    advertise: str,
    cores: int | None,
    tasks: int | None,
    memory: int | None,
    directories: tuple[Path, ...],
    token_file: str,
    tls_certificate: str,
    tls_key: str,
    tls_ca: str,
    mutual_tls: bool,
    insecure: bool,
    drain_seconds: float,
    settings: tuple[str, ...],
    as_json: bool,
    parent: int | None,
) -> None:
    """A daemon that runs tasks of queries. It needs no Java.

    SIGTERM or Ctrl-C drains it: it takes nothing new, finishes what runs, and ends. A second one ends it at once.

    \b
    Example:
      volley worker --port 7070 --memory 8g
      spark.volley.transport=flight, spark.volley.workers=127.0.0.1:7070
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    config = Config.read(parse_settings(settings))
    spill = directories or (Path(tempfile.gettempdir()),)
    check_directories(spill)
    width = cores or available_cores()
    daemon = Daemon(
        DaemonSettings(
            host=host,
            port=config.shuffle_port if port is None else port,
            advertise=advertise,
            cores=width,
            slots=tasks or width,
            memory_bytes=memory or int(available_memory_bytes() * 0.8),
            directories=spill,
            shuffle=ShuffleSettings.of(config),
            drain_seconds=drain_seconds,
            require_client_certificate=mutual_tls,
            insecure=insecure,
        ),
        Security.read(token_file, tls_ca, tls_certificate, tls_key),
    )

    def announce() -> None:
        if as_json:
            ready = {"address": daemon.address, "pid": os.getpid(), "memory": asdict(daemon.budget)}
            click.echo(json.dumps(ready))
        else:
            click.echo(f"worker {daemon.address}: {width} cores, {tasks or width} tasks at once")
            click.echo(f"memory {daemon.budget}")

    serve(daemon, announce, parent)
