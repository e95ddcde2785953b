# SPDX-License-Identifier: Apache-2.0
"""`volley status`: shows the health of worker daemons and shuffle servers, and drains them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from volley.cli.client_options import client_options
from volley.cli.console import new_console
from volley.cli.health import health_table, service_table
from volley.cluster import Unhealthy, ask_health, drain
from volley.membership import current_addresses, parse_members
from volley.rpc.shuffle_messages import ServiceHealth
from volley.security import Security
from volley.user_token import token_file_for


def parse_daemons(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Callback of an option or argument that lists daemons: host:port, dns:name:port or file:/path, ..."""
    try:
        return current_addresses(parse_members(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("daemons", callback=parse_daemons)
@click.option(
    "--drain", "draining", is_flag=True, help="Drain them: they take no new work. Stop them with SIGTERM."
)
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(
    daemons: tuple[str, ...],
    draining: bool,
    token_file: str,
    tls_certificate: str,
    tls_key: str,
    tls_ca: str,
    as_json: bool,
) -> None:
    """Show the health of the daemons at DAEMONS (host:port,...). Exit status 1 if one does not answer; it says why.

    Example: volley status 127.0.0.1:7070,127.0.0.1:7071
    """
    security = Security.read(token_file_for(daemons, token_file), tls_ca, tls_certificate, tls_key)
    if draining:
        for address in daemons:
            drain(address, security)
    found = [ask_health(address, security) for address in daemons]
    if as_json:
        answers = {address: asdict(health) for address, health in zip(daemons, found, strict=True)}
        click.echo(json.dumps(answers, indent=2))
    else:
        states = dict(zip(daemons, found, strict=True))
        servers = {a: state for a, state in states.items() if isinstance(state, ServiceHealth)}
        others = {a: state for a, state in states.items() if not isinstance(state, ServiceHealth)}
        console = new_console()
        if others:
            console.print(health_table(list(others), list(others.values())))
        if servers:
            console.print(service_table(list(servers), list(servers.values())))
    problems = [health for health in found if isinstance(health, Unhealthy)]
    if not as_json:
        for problem in problems:
            click.echo(f"{problem.status}: {problem.message}", err=True)
    sys.exit(1 if problems else 0)
