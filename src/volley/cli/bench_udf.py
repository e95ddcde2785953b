# SPDX-License-Identifier: Apache-2.0
"""`volley bench udf`: measures queries that call Python functions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import TextColumn, TimeElapsedColumn

import volley
from volley.bench.engines import register_tables
from volley.bench.environment import environment
from volley.bench.spark import start_spark
from volley.bench.udf import CASES, Sizes, measure, udf_table
from volley.cli.console import (
    generate_with_progress,
    json_option,
    new_console,
    progress_bar,
    save,
    step,
)
from volley.process.machine import available_cores


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=10_000_000, show_default=True, help="Rows.")
@click.option("--groups", type=click.IntRange(min=1), default=10_000, show_default=True, help="Groups.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Scale of the TPC-H tables.",
)
@click.option(
    "--cases", default="", metavar="TEXT,...", help="Only cases whose name contains one of these texts."
)
@click.option("--spark/--no-spark", "with_spark", default=True, help="Also run plain Spark.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Runs of each case. The best one counts.",
)
@json_option
def udf(
    rows: int,
    groups: int,
    scale: float,
    cases: str,
    with_spark: bool,
    runs: int,
    json_file: Path | None,
) -> None:
    """Compare Volley with plain Spark on queries that call Python functions, and check that the rows are the same.

    \b
    Example:
      volley bench udf --rows 1000000 --cases pandas,TPC-H
    """
    console = new_console()
    wanted = [text.strip().lower() for text in cases.split(",") if text.strip()]
    chosen = [name for name in CASES if not wanted or any(text in name.lower() for text in wanted)]
    if not chosen:
        raise click.BadParameter(f"no case is called so; there are {', '.join(CASES)}", param_hint="--cases")
    sizes = Sizes(rows, groups)
    cores = available_cores()
    master = f"local[{cores}]"
    data = generate_with_progress(console, scale, None) if any("TPC-H" in name for name in chosen) else None
    with step(console, "Starting Spark ..."):
        spark = start_spark("volley bench udf", master, {})
        volley.enable(spark)
        if data is not None:
            register_tables(spark, data)
    engines = ("volley", "spark") if with_spark else ("volley",)
    with progress_bar(console, TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("")
        found = measure(
            spark, sizes, chosen, engines, runs, lambda words: bar.update(task, description=words)
        )
    results = {
        "sizes": asdict(sizes),
        "scale": scale,
        "environment": environment(spark, master, cores, {}),
        "runs": [run.to_dict() for run in found],
    }
    spark.stop()
    console.print(udf_table(sizes, found))
    save(console, json_file, results)
