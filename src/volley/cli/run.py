# SPDX-License-Identifier: Apache-2.0
"""`volley run`: runs an unchanged PySpark program with Volley enabled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from volley.cli.console import new_console, parse_settings
from volley.cli.history import history_table
from volley.launcher import run_program
from volley.observe.history_store import HistoryReader
from volley.observe.history_writer import flush_history, history_directory

_REPORTED = 1000


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the session. Repeatable."
)
@click.option("--report", is_flag=True, help="Say at the end what each query did.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(settings: tuple[str, ...], report: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM, a PySpark program that need not know of Volley, with Volley enabled for its sessions.

    \b
    Example:
      volley run --report app.py --its-own arguments
      volley run --conf spark.volley.fallback=warn app.py
    """
    options = parse_settings(settings)
    submit(options)
    with _reporting(options) if report else _silent():
        run_program(program, arguments)


def submit(options: dict[str, str]) -> None:
    """Give options to the session that will be made, as `spark-submit --conf` does."""
    words = [word for key, value in options.items() for word in ("--conf", f"{key}={value}")]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{quoted} {os.environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}"


@contextmanager
def _silent() -> Iterator[None]:
    yield


@contextmanager
def _reporting(options: dict[str, str]) -> Iterator[None]:
    began = time.time()
    try:
        yield
    finally:
        flush_history()
        directory = history_directory(options.get("spark.volley.history.dir", "")) or Path()
        mine = [
            summary
            for summary in HistoryReader(directory).summaries(_REPORTED)
            if summary["process"] == os.getpid() and summary["started"] >= began
        ]
        console = new_console(stderr=True)
        native = sum(summary["engine"] == "native" for summary in mine)
        console.print(f"{len(mine)} queries, {native} of them native", highlight=False)
        if mine:
            console.print(history_table(list(reversed(mine))))
