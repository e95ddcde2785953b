# SPDX-License-Identifier: Apache-2.0
"""`volley demo` and `make run`: runs a short pipeline on Volley and on Spark."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import volley
from volley.bench.compare import difference
from volley.bench.data import size_bytes
from volley.bench.order import sort_columns
from volley.bench.spark import start_spark
from volley.cli.checks import check_java
from volley.cli.console import generate_with_progress, new_console
from volley.cli.console import step as show_step
from volley.cli.pipeline import STEPS, Step, Tables
from volley.errors import ConfigError
from volley.observe.spark_tasks import SparkTasks
from volley.process.machine import available_cores
from volley.spark_versions.classic import collect_table

# The first run of each engine includes loading code, and for Spark compiling it. The better of two counts.
_RUNS = 2


@dataclass(frozen=True)
class Timing:
    title: str
    volley_seconds: float
    spark_seconds: float
    spark_tasks: int
    native: bool
    problem: str | None


@click.command()
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="TPC-H scale factor; 1 is 6 million line items.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for TPC-H data. Default: the user's cache.",
)
def demo(scale: float, data: Path | None) -> None:
    """Run a short PySpark pipeline on Volley and on Spark.

    Generates TPC-H data once, then reads, joins, aggregates and ranks it with ordinary PySpark code on both engines,
    and compares rows and times.

    Example: volley demo --scale 0.1
    """
    java = check_java()
    if java.status == "error":
        raise ConfigError(
            f"the demo needs Java: {java.found}.", hint=f"{java.remedy} `volley doctor` checks the rest."
        )
    console = new_console()
    cores = available_cores()
    directory = generate_with_progress(console, scale, data)
    console.print(
        f"TPC-H data of scale {scale:g}: {size_bytes(directory) / 1e6:,.0f} MB of Parquet in {directory}",
        highlight=False,
    )
    with show_step(console, "Starting Spark ..."):
        spark = start_spark(
            "volley demo",
            f"local[{cores}]",
            {"spark.sql.shuffle.partitions": str(2 * cores), "spark.volley.local.cores": str(cores)},
        )
        volley.enable(spark)
    console.print("Spark is up, and [bold]volley.enable(spark)[/] was called.\n")
    try:
        timings = [_run_step(console, spark, directory, step) for step in STEPS]
        console.rule("volley.explain of the first query", align="left")
        volley.explain(STEPS[0](Tables(spark, directory)))
    finally:
        spark.stop()
    console.rule("Seconds", align="left")
    console.print(_timing_table(timings, cores))
    for timing in timings:
        if timing.problem:
            console.print(f"{timing.title}: {timing.problem}", style="red", highlight=False, markup=False)
    sys.exit(1 if any(timing.problem for timing in timings) else 0)


def _run_step(console: Console, spark: SparkSession, directory: Path, step: Step) -> Timing:
    title = step.__doc__ or step.__name__
    tables = Tables(spark, directory)
    frame = step(tables)
    with show_step(console, f"{title}: Volley ..."):
        spark.conf.set("spark.volley.enabled", "true")
        rows, volley_seconds, spark_tasks = _best(step, tables)
        report = volley.last_query(spark)
    console.print(_result_table(title, rows))
    with show_step(console, f"{title}: Spark, for comparison ..."):
        spark.conf.set("spark.volley.enabled", "false")
        expected, spark_seconds, _ = _best(step, tables)
    spark.conf.set("spark.volley.enabled", "true")
    console.print(
        f"Volley {volley_seconds:.2f} s, {spark_tasks} Spark tasks; Spark {spark_seconds:.2f} s\n",
        highlight=False,
    )
    return Timing(
        title,
        volley_seconds,
        spark_seconds,
        spark_tasks=spark_tasks,
        native=report is not None and report.engine == "native",
        problem=difference(expected, rows, sort_columns(frame)),
    )


def _best(step: Step, tables: Tables) -> tuple[pa.Table, float, int]:
    """The rows, the seconds of the better run, and its number of Spark tasks (without those that read schemas)."""
    best: tuple[pa.Table, float, int] | None = None
    for _ in range(_RUNS):
        frame = step(tables)
        with SparkTasks(tables.spark) as tasks:
            started = time.perf_counter()
            rows = collect_table(frame)
            seconds = time.perf_counter() - started
        if best is None or seconds < best[1]:
            best = (rows, seconds, tasks.count)
    assert best is not None
    return best


def _result_table(title: str, rows: pa.Table) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for field in rows.schema:
        table.add_column(field.name, justify="left" if pa.types.is_string(field.type) else "right")
    for row in rows.to_pylist():
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float() | Decimal():
            return f"{value:,.2f}"
        # No thousands separator: years are integers too.
        case int() if value > 9999:
            return f"{value:,}"
        case date():
            return value.isoformat()
        case _:
            return str(value)


def _timing_table(timings: list[Timing], cores: int) -> Table:
    table = Table(
        caption=f"Better of {_RUNS} runs, {cores} cores, planning included.", caption_justify="left"
    )
    for heading in ("query", "Volley", "Spark", "faster", "Spark tasks", "rows"):
        table.add_column(heading, justify="left" if heading in ("query", "rows") else "right")
    for timing in timings:
        table.add_row(
            timing.title,
            f"{timing.volley_seconds:.2f}",
            f"{timing.spark_seconds:.2f}",
            f"{timing.spark_seconds / timing.volley_seconds:.1f}x",
            str(timing.spark_tasks) if timing.native else f"{timing.spark_tasks} (not native)",
            "[red]differ[/]" if timing.problem else "same as Spark's",
        )
    return table
