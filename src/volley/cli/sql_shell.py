# SPDX-License-Identifier: Apache-2.0
"""Runs SQL statements for `volley sql`, and reads them from a terminal."""

from __future__ import annotations

import csv
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.cli.sql_statements import is_complete, split_statements
from volley.observe.history_writer import history_directory
from volley.spark_versions.classic import collect_table, local_frame

_PROMPT, _CONTINUED = "volley> ", "      > "
# fmt: off
_WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT", "RIGHT",
    "FULL", "OUTER", "ANTI", "SEMI", "ON", "USING", "UNION ALL", "DISTINCT", "WITH", "AS", "CASE",
    "WHEN", "THEN", "ELSE", "END", "AND", "OR", "NOT", "IN", "EXISTS", "BETWEEN", "LIKE", "IS NULL",
    "CAST", "OVER", "PARTITION BY", "CREATE", "TEMPORARY VIEW", "TABLE", "INSERT INTO", "OVERWRITE",
    "VALUES", "DROP", "SHOW TABLES", "DESCRIBE", "EXPLAIN", "SET", "USE", "LATERAL VIEW",
)
# fmt: on


def run(spark: SparkSession, statement: str, output: str) -> bool:
    """Run one statement and print its rows, then who ran it and how long it took. False if it failed."""
    began, before = time.perf_counter(), volley.last_query(spark)
    try:
        frame = spark.sql(statement)
        report = _PRINTERS[output](frame) if frame.columns else volley.last_query(spark)
    except (PySparkException, volley.VolleyError) as error:
        click.echo(f"error: {error}", err=True)
        return False
    verdict = _verdict(report if report is not before else None)
    click.echo(f"{time.perf_counter() - began:.3f} s{verdict}", err=True)
    return True


def _verdict(report: volley.QueryReport | None) -> str:
    """Who ran it. Commands such as SHOW TABLES are queries of nobody."""
    if report is None:
        return ""
    reasons = "; ".join(str(reason) for reason in report.reasons)
    return f", {report.engine}" + (f": {reasons}" if reasons else "")


# ------------------------------------------------------------------------------------------- output


def _print_table(frame: DataFrame) -> volley.QueryReport | None:
    rows = collect_table(frame)
    report = volley.last_query(frame.sparkSession)
    # Spark formats its own values; the rows are local by now.
    local_frame(frame.sparkSession, rows, frame.schema).show(max(1, rows.num_rows), truncate=False)
    return report


def _print_csv(frame: DataFrame) -> volley.QueryReport | None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows(list(row) for row in frame.toLocalIterator())
    return volley.last_query(frame.sparkSession)


def _print_json(frame: DataFrame) -> volley.QueryReport | None:
    for row in frame.toLocalIterator():
        click.echo(json.dumps(row.asDict(recursive=True), default=str, ensure_ascii=False))
    return volley.last_query(frame.sparkSession)


_PRINTERS: dict[str, Callable[[DataFrame], volley.QueryReport | None]] = {
    "table": _print_table,
    "csv": _print_csv,
    "json": _print_json,
}


# ------------------------------------------------------------------------------------------- interactively


def interact(spark: SparkSession, output: str) -> None:
    """Read statements from the terminal until its end. A failed one, or Ctrl-C, ends only itself."""
    click.echo("Statements end with a semicolon, Ctrl-D ends the session.", err=True)
    read_line = _line_reader(spark)
    for text in _texts(read_line):
        for statement in split_statements(text):
            if statement.lower() in ("quit", "exit"):
                return
            try:
                run(spark, statement, output)
            except KeyboardInterrupt:
                click.echo("interrupted", err=True)


def _texts(read_line: Callable[[str], str]) -> Iterator[str]:
    """Lines, put together to texts whose last statement has ended."""
    text = ""
    while True:
        try:
            text += read_line(_CONTINUED if text.strip() else _PROMPT) + "\n"
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return
        if is_complete(text) or text.strip().lower() in ("quit", "exit"):
            yield text
            text = ""


def _line_reader(spark: SparkSession) -> Callable[[str], str]:
    """A reader of lines with completion and history; a plain one if prompt_toolkit is not installed."""
    try:
        toolkit = importlib.import_module("prompt_toolkit")
    except ImportError:
        return input
    completion = importlib.import_module("prompt_toolkit.completion")
    history = importlib.import_module("prompt_toolkit.history")

    session: Any = toolkit.PromptSession(
        completer=completion.WordCompleter(lambda: completions(spark), ignore_case=True),
        complete_while_typing=False,
        history=history.FileHistory(str(_history_file())),
    )
    return lambda prompt: str(session.prompt(prompt))


def completions(spark: SparkSession) -> list[str]:
    """Words of SQL, tables and views, and their columns."""
    catalog = spark._jsparkSession.sessionState().catalog()
    # Temporary views are among the tables.
    tables = catalog.listTables(catalog.getCurrentDatabase())
    names = sorted({str(tables.apply(number).table()) for number in range(tables.size())})
    return [*_WORDS, *names, *sorted({column for name in names for column in _columns(spark, name)})]


def _columns(spark: SparkSession, table: str) -> list[str]:
    try:
        return spark.table(f"`{table}`").columns
    except PySparkException:
        return []


def _history_file() -> Path:
    directory = history_directory("") or Path.home()
    directory.mkdir(parents=True, exist_ok=True)
    return directory / "sql_history"
