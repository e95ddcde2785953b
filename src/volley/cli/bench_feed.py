# SPDX-License-Identifier: Apache-2.0
"""`volley bench feed`: measures reading a source while its splits are discovered."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import TextColumn, TimeElapsedColumn

import volley
from volley.bench.environment import environment
from volley.bench.feed import Pace, feed_table, measure
from volley.bench.spark import start_spark
from volley.cli.console import json_option, new_console, progress_bar, save, step
from volley.process.machine import available_cores


@click.command()
@click.option(
    "--splits", type=click.IntRange(min=1), default=1000, show_default=True, help="Splits of the source."
)
@click.option("--rows", type=click.IntRange(min=1), default=100, show_default=True, help="Rows per split.")
@click.option(
    "--discovery",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds that discovery takes.",
)
@click.option(
    "--read", type=click.FloatRange(min=0), default=0.01, show_default=True, help="Seconds to read a split."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=available_cores(),
    show_default=True,
    help="In-process workers with one core each; also Spark's cores.",
)
@click.option(
    "--spark/--no-spark", "with_spark", default=True, help="Also run plain Spark on the same source."
)
@json_option
def feed(
    splits: int,
    rows: int,
    discovery: float,
    read: float,
    workers: int,
    with_spark: bool,
    json_file: Path | None,
) -> None:
    """Compare Volley with plain Spark on a source with slow discovery: time to first row and in total.

    \b
    Example:
      volley bench feed --splits 1000 --discovery 10 --json feed.json
    """
    console = new_console()
    pace = Pace(splits, rows, discovery, read)
    master = f"local[{workers}]"
    settings = {"spark.volley.local.workers": str(workers), "spark.volley.local.cores": str(workers)}
    with step(console, "Starting Spark ..."):
        spark = start_spark("volley bench feed", master, settings)
        volley.enable(spark)
    engines = ("volley", "spark") if with_spark else ("volley",)
    with progress_bar(console, TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("")
        runs = measure(spark, pace, engines, lambda words: bar.update(task, description=words))
    results = {
        "pace": asdict(pace),
        "environment": environment(spark, master, workers, settings),
        "runs": [run.to_dict() for run in runs],
    }
    spark.stop()
    console.print(feed_table(pace, workers, runs))
    save(console, json_file, results)
