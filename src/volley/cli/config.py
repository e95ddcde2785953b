# SPDX-License-Identifier: Apache-2.0
"""`volley config`: prints the option reference, from the declarations in `volley.options`."""

from __future__ import annotations

import json

import click
from rich.table import Table

from volley.cli.console import new_console
from volley.options import OPTIONS


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the reference as JSON.")
def config(as_json: bool) -> None:
    """List all options: name, type, default, meaning.

    Set them like any Spark option, when the session is built or on a live session.

    Example: volley config --json
    """
    if as_json:
        rows = [
            {"key": option.key, "type": option.kind, "default": option.default, "meaning": option.meaning}
            for option in OPTIONS
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("option", "type", "default", "meaning")
    for option in OPTIONS:
        table.add_row(option.key, option.kind, option.default, option.meaning)
    new_console().print(table)
