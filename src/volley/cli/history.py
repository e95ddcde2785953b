# SPDX-License-Identifier: Apache-2.0
"""`volley history`: lists past queries, and shows one."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from volley.cli.console import new_console
from volley.observe.history_store import HistoryReader, default_directory
from volley.observe.stage_data import Stage, stages_of
from volley.worker.budget import format_size


@click.command()
@click.argument("query", required=False)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Folder of the history (spark.volley.history.dir). Default: the user's.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to list.")
@click.option("--engine", type=click.Choice(["native", "mixed", "spark"]), help="Only those that it ran.")
@click.option(
    "--outcome", type=click.Choice(["answered", "failed", "cancelled", "running"]), help="Only these."
)
@click.option(
    "--search", default="", help="Only those with this text in their description, place or reasons."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def history(
    query: str | None,
    directory: Path | None,
    limit: int,
    engine: str | None,
    outcome: str | None,
    search: str,
    as_json: bool,
) -> None:
    """List past queries, newest first, or show QUERY: its plan, stages and events. The start of its id is enough.

    \b
    Example:
      volley history --engine spark
      volley history 1f2e3d --json
    """
    reader = HistoryReader(directory or default_directory())
    if query is not None:
        record = reader.get(query)
        if record is None:
            raise click.ClickException(f"no query, or more than one, begins with {query!r} in {reader.path}.")
        click.echo(json.dumps(record, indent=2)) if as_json else _show(record)
        return
    summaries = reader.summaries(limit, engine=engine or "", outcome=outcome or "", search=search)
    if as_json:
        click.echo(json.dumps(summaries, indent=2))
        return
    if not summaries:
        click.echo(f"no queries in {reader.path}", err=True)
        sys.exit(1)
    new_console().print(history_table(summaries))


def history_table(summaries: list[dict[str, Any]]) -> Table:
    """Summaries of queries, one a row."""
    table = Table("query", "started", "action", "at", "engine", "outcome", "seconds", "rows", "why")
    for summary in summaries:
        reasons = dict.fromkeys(reason["reason"] for reason in summary["reasons"])
        error = [summary["error"]["code"]] if summary["error"] else []
        table.add_row(
            summary["query"],
            _time(summary["started"]),
            _text(summary["action"]),
            _text(summary["caller"]),
            summary["engine"],
            summary["outcome"],
            f"{summary['seconds']:.3f}",
            "" if summary["rows"] is None else f"{summary['rows']:,}",
            _text(", ".join([*error, *reasons])),
        )
    return table


def _show(record: dict[str, Any]) -> None:
    console = new_console()

    def say(line: str) -> None:
        console.print(_text(line), soft_wrap=True)

    say(
        f"{record['query']}  {record['action']} at {record['caller']}, {_time(record['started'])}, "
        f"by {record['application_name']} ({record['application']}) on {record['host']}"
    )
    if record["description"]:
        say(record["description"])
    rows = "" if record["rows"] is None else f"{record['rows']:,} rows in "
    say(
        f"{record['engine']}, {record['outcome']}: {rows}{record['seconds']:.3f} s (Spark's planning "
        f"{record['planning_seconds']:.3f}, capture {record['capture_seconds']:.3f})"
    )
    if record["error"]:
        say(f"[{record['error']['code']}] {record['error']['message']}")
    for reason in record["reasons"]:
        say(
            f"  [{reason['reason']}] {reason['what']}" + (f": {reason['detail']}" if reason["detail"] else "")
        )
    for node in record["plan"]:
        say(f"{'  ' * node['depth']}{'✓' if node['native'] else '✗'} {node['text']}")
    for stage in stages_of(record["events"]):
        say(_line(stage))


def _line(stage: Stage) -> str:
    skew = f", skew {stage.skew:.1f}" if stage.skew > 1.5 else ""
    failed = f", {stage.failures} failed attempts" if stage.failures else ""
    spilled = f", {format_size(stage.spilled_bytes)} spilled" if stage.spilled_bytes else ""
    return (
        f"  stage {stage.name}: {len(stage.tasks)} tasks, {stage.rows:,} rows, {format_size(stage.size_bytes)}, "
        f"{stage.seconds:.3f} s{skew}{spilled}{failed}"
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _text(words: str) -> Text:
    """Text as it is: what a program calls its queries must not be markup, nor move the cursor."""
    return Text("".join(letter if letter.isprintable() else "�" for letter in words))
