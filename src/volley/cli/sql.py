# SPDX-License-Identifier: Apache-2.0
"""`volley sql`: runs SQL statements natively, from the command line, from a file or interactively."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from volley.cli.console import parse_settings
from volley.cli.sql_statements import split_statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@click.option("-e", "--execute", "texts", multiple=True, metavar="SQL", help="Statements to run. Repeatable.")
@click.option(
    "-f", "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file of statements."
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How rows are printed; json is an object per line.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the session. Repeatable."
)
def sql(
    texts: tuple[str, ...], file: Path | None, output: str, master: str, settings: tuple[str, ...]
) -> None:
    """Run SQL statements, separated by semicolons, and say who ran each of them and how long it took.

    Without -e and -f, statements are read from standard input: interactively if that is a terminal, with completion and
    history if prompt_toolkit is installed. Rows go to standard output, the rest to standard error. Exit status 1 if a
    statement fails.

    \b
    Example:
      volley sql -e "select count(*) from parquet.`/data/events`"
      volley sql --format csv -f report.sql > report.csv
    """
    given = list(texts) + ([file.read_text(encoding="utf-8")] if file is not None else [])
    if not given and not sys.stdin.isatty():
        given = [sys.stdin.read()]
    spark = _start(master, parse_settings(settings))
    try:
        from volley.cli import sql_shell

        if not given:
            sql_shell.interact(spark, output)
            return
        for statement in (statement for text in given for statement in split_statements(text)):
            if not sql_shell.run(spark, statement, output):
                sys.exit(1)
    finally:
        spark.stop()


def _start(master: str, settings: dict[str, str]) -> SparkSession:
    import volley
    from volley.bench.spark import start_spark

    return volley.enable(start_spark("volley sql", master, settings))
