# SPDX-License-Identifier: Apache-2.0
"""`volley cluster`: runs a local cluster of worker daemons, to try Volley out."""

from __future__ import annotations

import json
import signal
import sys
import threading
from contextlib import closing

import click
from rich.console import Console
from rich.live import Live

from volley.autoscaler import Autoscaler
from volley.cli.console import new_console, parse_settings, step
from volley.cli.health import health_table
from volley.cluster import LocalCluster
from volley.process.machine import available_memory_bytes

_REFRESH_SECONDS = 1.0


@click.command()
@click.option("--workers", type=click.IntRange(min=1), default=3, show_default=True, help="How many.")
@click.option(
    "--cores", type=click.IntRange(min=1), help="Cores per worker. Default: an equal share of this machine's."
)
@click.option(
    "--memory", help="Memory per daemon, such as 2g. Default: an equal share of half of this machine's."
)
@click.option(
    "--services",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Shuffle servers to keep exchanged data on. 0: it stays on the workers.",
)
@click.option(
    "--least",
    type=click.IntRange(min=1),
    help="Stop idle workers down to this number, and restart them when the others are busy. Needs --services.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="With --least: idle seconds before a worker is stopped.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A shuffle option. Repeatable.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON once it is up, and nothing else."
)
def cluster(
    workers: int,
    cores: int | None,
    memory: str | None,
    services: int,
    least: int | None,
    idle_seconds: float,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a local cluster of worker daemons.

    Each worker is a separate process. Ctrl-C or SIGTERM stops the cluster.

    Example: volley cluster --workers 3
    """
    if least is not None and not services:
        raise click.BadParameter(
            "needs --services; otherwise data would be lost with the workers", param_hint="--least"
        )
    console = new_console(stderr=as_json)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    share = memory or f"{available_memory_bytes() // 2 // (workers + services) >> 20}m"
    running = LocalCluster(
        workers, cores=cores, memory=share, settings=parse_settings(settings), services=services
    )
    with step(console, f"Starting {workers} workers ..."):
        running.start()
    with closing(running):
        if as_json:
            pids = [member.pid for member in running.members + running.servers]
            click.echo(json.dumps({"settings": running.settings, "pids": pids}))
        else:
            options = " ".join(f"--conf {key}={value}" for key, value in running.settings.items())
            beside = f" and {services} shuffle servers" if services else ""
            console.print(f"{workers} workers{beside} are up. To use them:\n", highlight=False)
            console.print(f"  pyspark {options}\n", highlight=False, markup=False, soft_wrap=True)
            console.print("and in the shell:\n\n  import volley; volley.enable(spark)\n", highlight=False)
        elastic = None if least is None else Autoscaler(running, least, idle_seconds)
        _show(console, running, stop, elastic, quiet=as_json)
    if not stop.is_set():
        click.echo("all workers have ended", err=True)
        sys.exit(1)


def _show(
    console: Console, running: LocalCluster, stop: threading.Event, elastic: Autoscaler | None, quiet: bool
) -> None:
    """Show the workers until the command is stopped or none is left. On a terminal the table is live."""
    if not console.is_terminal:
        if not quiet:
            console.print(health_table(running.addresses, running.health()))
        while any(member.alive for member in running.members) and not stop.wait(_REFRESH_SECONDS):
            if elastic:
                elastic.step()
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while any(member.alive for member in running.members):
            live.update(health_table(running.addresses, running.health()), refresh=True)
            if elastic:
                elastic.step()
            if stop.wait(_REFRESH_SECONDS):
                return
