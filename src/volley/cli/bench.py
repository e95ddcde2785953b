# SPDX-License-Identifier: Apache-2.0
"""`volley bench`: runs the same queries on several engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from volley.bench import tpcds as tpcds_suite
from volley.bench.data import TABLES
from volley.bench.engines import DataFusion, Embedded, Engine, Spark, Volley, cores_of, session
from volley.bench.environment import environment
from volley.bench.queries import parse_queries, query_text
from volley.bench.run import Results, run_queries
from volley.bench.table import results_table
from volley.cli.bench_compare import compare_command
from volley.cli.bench_feed import feed
from volley.cli.bench_shuffle import shuffle
from volley.cli.bench_storage import storage
from volley.cli.bench_udf import udf
from volley.cli.console import (
    Command,
    counting_bar,
    generate_with_progress,
    json_option,
    new_console,
    parse_settings,
    runs_option,
    save,
    step,
)
from volley.cluster import LocalCluster
from volley.machine import available_cores, available_memory_bytes

# Options for workers, not for the session.
SHUFFLE = "spark.volley.shuffle."
ENGINES = ("volley", "spark", "datafusion", "embedded")


@click.group()
def bench() -> None:
    """Compare Volley with Spark and DataFusion.

    Example: volley bench tpch --scale 1
    """


bench.add_command(compare_command)
bench.add_command(shuffle)
bench.add_command(feed)
bench.add_command(udf)
bench.add_command(storage)


def _engine_names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    unknown = [name for name in names if name not in ENGINES]
    if unknown or not names:
        raise click.BadParameter(f"expected some of {', '.join(ENGINES)}")
    return names


def _suite_options(suite: str, default_scale: float, default_engines: str) -> Callable[[Command], Command]:
    """The options of a command that runs a suite of queries."""
    options = (
        click.option(
            "--scale",
            type=click.FloatRange(min=0, min_open=True),
            default=default_scale,
            show_default=True,
            help=f"{suite} scale factor; 1 is about 1 GB of text.",
        ),
        click.option(
            "--engines",
            default=default_engines,
            show_default=True,
            callback=_engine_names,
            help="The engines to compare. With --cluster, embedded is Volley in this process.",
        ),
        runs_option("runs of each query on each engine"),
        click.option("--queries", default="", help="The queries to run, such as q01,q05. Default: all."),
        click.option(
            "--check", is_flag=True, help="Compare Volley's rows with Spark's. Exit status 1 if any differ."
        ),
        json_option,
        click.option(
            "--master",
            default=f"local[{available_cores()}]",
            show_default=True,
            help="Spark's master, local[n]; every engine gets n cores.",
        ),
        click.option(
            "--cluster",
            "workers",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Run Volley on this many local worker daemons. 0: in this process.",
        ),
        click.option(
            "--services",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="With --cluster: keep exchanged data on this many shuffle servers. 0: on the workers.",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="A Spark or Volley option. Repeatable.",
        ),
        click.option(
            "--data",
            type=click.Path(file_okay=False, path_type=Path),
            help=f"Directory for {suite} data. Default: the user's cache.",
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@bench.command()
@_suite_options("TPC-H", 1.0, "volley,spark,datafusion")
@click.pass_context
def tpch(context: click.Context, /, scale: float, queries: str, data: Path | None, **options: Any) -> None:
    """Run the 22 TPC-H queries. The data is generated once and kept.

    \b
    Examples:
      volley bench tpch --scale 1 --check --json results.json
      volley bench tpch --scale 0.1 --queries q01,q05 --set spark.volley.local.workers=3
      volley bench tpch --scale 1 --cluster 2 --engines volley,embedded
      volley bench tpch --scale 0.1 --cluster 3 --services 3
    """
    _check_options(**options)
    console = new_console()
    chosen = parse_queries(queries)
    directory = generate_with_progress(console, scale, data)
    _run_suite(context, console, scale, Suite("TPC-H", chosen, directory, TABLES, query_text), **options)


@bench.command()
@_suite_options("TPC-DS", 0.1, "volley,spark")
@click.pass_context
def tpcds(context: click.Context, /, scale: float, queries: str, data: Path | None, **options: Any) -> None:
    """Run the 99 TPC-DS queries. Data and texts come from DuckDB's extension, once, and are kept.

    \b
    Example:
      volley bench tpcds --scale 0.1 --check --runs 1
    """
    _check_options(**options)
    console = new_console()
    chosen = parse_queries(queries, tpcds_suite.QUERIES)
    with step(console, f"TPC-DS data, scale {scale:g} ..."):
        directory = tpcds_suite.tpcds_data(scale, data)
    tables, text_of = tpcds_suite.tables(directory), partial(tpcds_suite.query_text, directory)
    suite = Suite("TPC-DS", chosen, directory, tables, text_of, tpcds_suite.SETTINGS)
    _run_suite(context, console, scale, suite, **options)


@dataclass(frozen=True)
class Suite:
    """The chosen queries, and where to find their tables and texts. `settings` are what Spark needs to read them."""

    name: str
    queries: tuple[str, ...]
    data: Path
    tables: tuple[str, ...]
    text_of: Callable[[str], str]
    settings: Mapping[str, str] = field(default_factory=dict)


def _check_options(engines: tuple[str, ...], check: bool, workers: int, services: int, **others: Any) -> None:
    if check and "volley" not in engines:
        raise click.BadParameter(
            "nothing to compare: --engines does not include volley", param_hint="--check"
        )
    if services and not workers:
        raise click.BadParameter("shuffle servers need workers: add --cluster", param_hint="--services")
    if "embedded" in engines and not workers:
        raise click.BadParameter(
            "embedded needs --cluster; without it, volley is embedded already", param_hint="--engines"
        )


def _run_suite(
    context: click.Context,
    console: Console,
    scale: float,
    suite: Suite,
    *,
    engines: tuple[str, ...],
    runs: int,
    check: bool,
    json_file: Path | None,
    master: str,
    workers: int,
    services: int,
    settings: tuple[str, ...],
) -> None:
    cores = cores_of(master)
    chosen_settings = {**suite.settings, **parse_settings(settings)}
    if workers:
        with step(console, f"Starting {workers} workers ..."):
            cluster = LocalCluster(
                workers,
                cores=max(1, cores // workers),
                memory=f"{available_memory_bytes() // 2 // (workers + services) >> 20}m",
                services=services,
                settings={key: value for key, value in chosen_settings.items() if key.startswith(SHUFFLE)},
            )
            # Stopped when the command ends, however it ends.
            context.with_resource(cluster)
        chosen_settings = cluster.settings | chosen_settings
    with step(console, "Starting Spark ..."):
        spark = session(master, chosen_settings, suite.data, suite.tables)
        sides: dict[str, Engine] = {}
        for name in engines:
            match name:
                case "volley":
                    sides[name] = Volley(spark)
                case "spark":
                    sides[name] = Spark(spark)
                case "embedded":
                    sides[name] = Embedded(spark)
                case _:
                    sides[name] = DataFusion(suite.data, cores, suite.tables)
    results = Results(scale, environment(spark, master, cores, chosen_settings), suite=suite.name)
    with counting_bar(console) as bar:
        task = bar.add_task("", total=len(suite.queries) * len(engines) * (runs + 1))

        def advance(query: str, engine: str, round_number: int) -> None:
            step = f"run {round_number} of {runs}" if round_number else "warm-up"
            bar.update(task, description=f"{query}  {engine}, {step}", advance=1)

        results.results.extend(
            run_queries(spark, list(sides.values()), suite.queries, runs, check, advance, suite.text_of)
        )
    spark.stop()
    console.print(results_table(results))
    for result in results.results:
        if result.engine == "volley" and not result.best.native:
            console.print(
                f"{result.query} ran on Spark: {'; '.join(result.best.reasons)}",
                highlight=False,
                markup=False,
            )
    for result in results.differing:
        console.print(f"{result.query}: {result.difference}", style="red", highlight=False, markup=False)
    save(console, json_file, results.to_dict())
    sys.exit(1 if results.differing else 0)
