# SPDX-License-Identifier: Apache-2.0
"""`volley help`: what a code of an error or a reason means."""

from __future__ import annotations

import difflib
import sys

import click

from volley.codes import CODES, find_code


@click.command()
@click.argument("code", required=False)
def help(code: str | None) -> None:
    """Say what CODE means and what to do about it. Without it, list all.

    Codes are in errors, explanations and reports.

    Example: volley help NO_WORKERS
    """
    if code is None:
        for known in CODES:
            click.echo(f"{known.name:32} {known.kind:8} {known.meaning}")
        return
    found = find_code(code)
    if not found:
        close = difflib.get_close_matches(code.upper(), [known.name for known in CODES], 1)
        click.echo(f"There is no code {code}." + (f" Did you mean {close[0]}?" if close else ""), err=True)
        sys.exit(2)
    for entry in found:
        click.echo(f"{entry.name} ({entry.kind})\n\n  {entry.meaning}\n\n  What to do: {entry.remedy}\n")
