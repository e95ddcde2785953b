# SPDX-License-Identifier: Apache-2.0
"""`volley dashboard`: serves the dashboard, for the history of one or several programs and for running daemons."""

from __future__ import annotations

import json
import signal
import threading
import webbrowser
from pathlib import Path

import click

from volley.cli.status import parse_daemons
from volley.observe.dashboard.server import Dashboard, Site
from volley.observe.history_store import default_directory
from volley.security import Security
from volley.user_token import token_file_for

_TURN_SECONDS = 0.5


@click.command()
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder of a history (spark.volley.history.dir). Repeatable. Default: the user's.",
)
@click.option(
    "--daemons", default="", callback=parse_daemons, help="Workers and shuffle servers, host:port,..."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=4055, show_default=True, help="Port. 0: any.")
@click.option("--token-file", default="", help="File with the token of the daemons. Default: VOLLEY_TOKEN.")
@click.option("--tls-ca", default="", help="CA certificates (PEM) of the daemons. If set, use TLS with them.")
@click.option(
    "--tls-certificate", default="", help="Certificate (PEM) of the dashboard. If set, it uses TLS."
)
@click.option("--tls-key", default="", help="Private key (PEM) of the certificate.")
@click.option("--insecure", is_flag=True, help="Allow listening beyond loopback without TLS.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print its address as one line of JSON.")
def dashboard(
    directories: tuple[Path, ...],
    daemons: tuple[str, ...],
    host: str,
    port: int,
    token_file: str,
    tls_ca: str,
    tls_certificate: str,
    tls_key: str,
    insecure: bool,
    open_browser: bool,
    as_json: bool,
) -> None:
    """Show queries and workers in a browser: those of all programs that write to the same history, as they run.

    Beyond loopback it asks for a token, which is part of the address that it prints. Ctrl-C stops it.

    Example: volley dashboard --daemons 127.0.0.1:7070 --open
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serving = Dashboard(
        directories or [default_directory()],
        Site(host, port, None, tls_certificate, tls_key, insecure),
        lambda: daemons,
        Security.read(token_file_for(daemons, token_file), tls_ca),
    )
    click.echo(json.dumps({"url": serving.url}) if as_json else f"dashboard: {serving.url}")
    if open_browser:
        webbrowser.open(serving.url)
    while serving.alive and not stop.wait(_TURN_SECONDS):
        pass
    serving.close()
