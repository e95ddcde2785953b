# SPDX-License-Identifier: Apache-2.0
"""Helpers for several commands: options, progress bars, output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from volley.bench.data import tpch_data

# Parquet bytes at scale 1, for the progress bar: measured there, an estimate for other scales.
_BYTES_PER_SCALE = 363_000_000
_WIDTH = 120

Command = TypeVar("Command", bound=Callable[..., Any])


def new_console(stderr: bool = False) -> Console:
    """A console as wide as the terminal or, without one, wide enough for the tables."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH
    return console


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{setting!r} is not of the form spark.key=value", param_hint="--set")
        parsed[key.strip()] = value.strip()
    return parsed


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this file as JSON.",
)


def runs_option(of_what: str) -> Callable[[Command], Command]:
    return click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help=f"Timed {of_what}, after one warm-up. The best one counts.",
    )


def save(console: Console, file: Path | None, results: Mapping[str, object]) -> None:
    """Write the results to the file of `json_option`, if given."""
    if file is not None:
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        console.print(f"Wrote {file}")


def generate_with_progress(console: Console, scale: float, directory: Path | None) -> Path:
    """Generate TPC-H data of this scale with a progress bar, unless it exists already. Returns its directory."""
    if not console.is_terminal:
        console.print(f"TPC-H data, scale {scale:g} ...", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with progress_bar(console, *columns) as bar:
        task = bar.add_task(f"TPC-H data, scale {scale:g}", total=scale * _BYTES_PER_SCALE)
        return tpch_data(scale, directory, lambda written: bar.update(task, completed=written))


def counting_bar(console: Console) -> Progress:
    """A progress bar that counts steps."""
    return progress_bar(
        console, TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )


def advance_runs(bar: Progress, steps: int, runs: int) -> Callable[[str, str, int], None]:
    """A task of `steps` runs on the bar. The function to call before each run: query, engine, round (0: warm-up)."""
    task = bar.add_task("", total=steps)

    def advance(query: str, engine: str, round_number: int) -> None:
        run = f"run {round_number} of {runs}" if round_number else "warm-up"
        bar.update(task, description=f"{query}  {engine}, {run}", advance=1)

    return advance


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """A progress bar that disappears when it is done. Shows nothing without a terminal."""
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def step(console: Console, text: str) -> Iterator[None]:
    """Show what is being done: with a spinner on a terminal, otherwise as a line."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(text, highlight=False)
        yield
