# SPDX-License-Identifier: Apache-2.0
"""`volley qualify`: forecasts from Spark's event logs what Volley would do."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from volley.cli.console import new_console
from volley.codes import remedy_of
from volley.qualification.event_log import read_event_log
from volley.qualification.forecast import SPEEDUP, Forecast, forecast
from volley.qualification.report import headline, to_csv, to_html

_SHOWN = 20


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--speedup",
    type=click.FloatRange(min=1),
    default=SPEEDUP,
    show_default=True,
    help="How many times faster native work is taken to be.",
)
@click.option(
    "--format",
    type=click.Choice(["text", "json", "csv", "html"]),
    default="text",
    show_default=True,
    help="Output.",
)
def qualify(logs: tuple[Path, ...], speedup: float, format: str) -> None:
    """Forecast from LOGS, event logs of Spark 3 or 4, what Volley would do for jobs that never ran it.

    A log is a file, plain or zstd, or the directory of a rolling log. It needs no Java, and runs nothing.

    Example: volley qualify /data/spark-events/app-2026* --format html > forecast.html
    """
    found = forecast([read_event_log(path) for path in logs], speedup)
    match format:
        case "json":
            click.echo(json.dumps(found.to_dict(), indent=2))
        case "csv":
            click.echo(to_csv(found), nl=False)
        case "html":
            click.echo(to_html(found))
        case _:
            _show(found)


def _show(found: Forecast) -> None:
    console = new_console()
    console.print(headline(found), highlight=False)
    table = Table("query", "engine", "native", "seconds", "saved", "why")
    longest = sorted(found.queries, key=lambda query: -query.seconds)
    for query in longest[:_SHOWN]:
        why = ", ".join(f"{problem.reason} {problem.what}" for problem in query.problems)
        name = f"{query.application} {query.query}: {query.description}"
        figures = (f"{query.fraction:.0%}", f"{query.seconds:.1f}", f"{query.saved_seconds:.1f}")
        table.add_row(Text(name), query.engine, *figures, Text(why))
    console.print(table)
    if len(longest) > _SHOWN:
        console.print(f"and {len(longest) - _SHOWN} shorter queries", highlight=False)
    for verdict, count, seconds in found.obstacles[:10]:
        console.print(Text(f"{verdict.reason} {verdict.what}: in {count} queries of {seconds:.1f} s"))
        if remedy := remedy_of(verdict.reason):
            console.print(Text(f"  To gain more: {remedy}"))
    for line in found.assumptions:
        console.print(Text(f"* {line}"), style="dim")
