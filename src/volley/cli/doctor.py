# SPDX-License-Identifier: Apache-2.0
"""`volley doctor`: checks whether Volley can run on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

from volley.cli.checks import CHECKS, Check, Finding
from volley.cli.console import new_console, step

_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Check this machine, and say how to fix what is wrong.

    Checks Java, package versions, plug-ins, memory, shared memory and loopback ports, and runs one query natively on a
    temporary Spark session. Exit status 1 if something is wrong.

    Example: volley doctor --json
    """
    console = new_console(stderr=as_json)
    findings: list[Finding] = []
    for check in CHECKS:
        with step(console, f"{check.title} ..."):
            findings.append(_examine(check, findings))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console.print(_table(findings))
    sys.exit(1 if any(finding.status == "error" for finding in findings) else 0)


def _examine(check: Check, before: list[Finding]) -> Finding:
    broken = [finding.name for finding in before if finding.status == "error" and finding.name in check.needs]
    if broken:
        return Finding(check.name, "error", f"skipped because of: {', '.join(broken)}", "Fix that first.")
    try:
        return check.examine()
    except Exception as error:
        return Finding(check.name, "error", f"{type(error).__name__}: {error}", "")


def _table(findings: list[Finding]) -> Table:
    table = Table("", "check", "found", "to do")
    for finding in findings:
        table.add_row(_MARKS[finding.status], finding.name, escape(finding.found), escape(finding.remedy))
    return table
