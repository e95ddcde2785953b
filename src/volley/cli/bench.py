# SPDX-License-Identifier: Apache-2.0
"""`volley bench`: runs the same queries on several engines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from volley.bench import clicks as clicks_suite
from volley.bench import h2o as h2o_suite
from volley.bench import pipeline as pipeline_suite
from volley.bench import tpcds as tpcds_suite
from volley.bench.data import TABLES
from volley.bench.engines import DataFusion, Embedded, Engine, Spark, Volley, cores_of, session
from volley.bench.environment import environment
from volley.bench.queries import parse_queries, query_text
from volley.bench.run import Results, run_queries
from volley.bench.suite import Suite
from volley.bench.table import results_table
from volley.cli.bench_compare import compare_command
from volley.cli.bench_feed import feed
from volley.cli.bench_growth import growth
from volley.cli.bench_peers import PEERS, run_isolated
from volley.cli.bench_shuffle import shuffle
from volley.cli.bench_storage import storage
from volley.cli.bench_udf import udf
from volley.cli.console import (
    Command,
    advance_runs,
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
from volley.process.machine import available_cores, available_memory_bytes

# Options for workers, not for the session.
SHUFFLE = "spark.volley.shuffle."
ALL = ("volley", "spark", "datafusion", *PEERS)
ENGINES = (*ALL, "embedded")
# Engines that can run a PySpark program.
SPEAK_PYSPARK = "volley,spark,sail"


@click.group()
def bench() -> None:
    """Compare Volley with Spark, DataFusion and other engines.

    \b
    Examples:
      volley bench tpch --scale 1
      volley bench tpch --scale 1 --engines all
    """


bench.add_command(compare_command)
bench.add_command(shuffle)
bench.add_command(feed)
bench.add_command(growth)
bench.add_command(udf)
bench.add_command(storage)


def _engine_names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    if value.strip() == "all":
        return ALL
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    unknown = [name for name in names if name not in ENGINES]
    if unknown or not names:
        raise click.BadParameter(f"expected all, or some of {', '.join(ENGINES)}")
    return names


def _suite_options(
    suite: str, default_scale: float, default_engines: str, one: str = "about 1 GB of text"
) -> Callable[[Command], Command]:
    """The options of a command that runs a suite of queries. `one` says how much scale 1 is."""
    options = (
        click.option(
            "--scale",
            type=click.FloatRange(min=0, min_open=True),
            default=default_scale,
            show_default=True,
            help=f"{suite} scale factor; 1 is {one}.",
        ),
        click.option(
            "--engines",
            default=default_engines,
            show_default=True,
            callback=_engine_names,
            help=f"The engines to compare, or all: {', '.join(ALL)}. Those of other projects are installed on first "
            "use, each in an environment of its own. With --cluster, embedded is Volley in this process.",
        ),
        click.option(
            "--isolated",
            is_flag=True,
            help="Run each engine in a process of its own, to measure its memory and processor time. Implied by "
            "engines of other projects.",
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
    chosen = parse_queries(queries, tpcds_suite.QUERIES)

    def load() -> Suite:
        directory = tpcds_suite.tpcds_data(scale, data)
        tables, text_of = tpcds_suite.tables(directory), partial(tpcds_suite.query_text, directory)
        return Suite("TPC-DS", chosen, directory, tables, text_of, tpcds_suite.SETTINGS)

    _load_and_run(context, "TPC-DS", scale, load, **options)


@bench.command()
@_suite_options("H2O", 0.1, "volley,spark,datafusion", "10 million rows")
@click.pass_context
def h2o(context: click.Context, /, scale: float, queries: str, data: Path | None, **options: Any) -> None:
    """Run 10 group-by and 5 join queries over a table of generated keys.

    \b
    Examples:
      volley bench h2o --scale 1 --engines all
      volley bench h2o --queries g03,j05
    """
    chosen = parse_queries(queries, h2o_suite.QUERIES)

    def load() -> Suite:
        return Suite("H2O", chosen, h2o_suite.h2o_data(scale, data), h2o_suite.TABLES, h2o_suite.query_text)

    _load_and_run(context, "H2O", scale, load, **options)


@bench.command()
@_suite_options("page view", 0.1, "volley,spark,datafusion", "10 million rows of 95 columns")
@click.pass_context
def clicks(context: click.Context, /, scale: float, queries: str, data: Path | None, **options: Any) -> None:
    """Run 43 queries of web analytics over one wide table of page views.

    \b
    Example:
      volley bench clicks --scale 0.1 --engines volley,duckdb
    """
    chosen = parse_queries(queries, clicks_suite.QUERIES)

    def load() -> Suite:
        directory = clicks_suite.clicks_data(scale, data)
        return Suite("Page views", chosen, directory, clicks_suite.TABLES, clicks_suite.query_text)

    _load_and_run(context, "Page view", scale, load, **options)


@bench.command()
@_suite_options("pipeline", 0.1, SPEAK_PYSPARK, "5 million rows of CSV")
@click.pass_context
def pipeline(
    context: click.Context, /, scale: float, queries: str, data: Path | None, **options: Any
) -> None:
    """Run a PySpark program: read CSV, clean, join, rank, call a Python function, write Parquet.

    \b
    Example:
      volley bench pipeline --scale 1
    """
    # A program starts sessions of its own.
    options["isolated"] = True
    chosen = parse_queries(queries, pipeline_suite.QUERIES)

    def load() -> Suite:
        directory = pipeline_suite.pipeline_data(scale, data)
        programs = dict.fromkeys(pipeline_suite.QUERIES, pipeline_suite.PROGRAM)
        return Suite("Pipeline", chosen, directory, (), str, programs=programs)

    _load_and_run(context, "Pipeline", scale, load, **options)


def _load_and_run(
    context: click.Context, what: str, scale: float, load: Callable[[], Suite], **options: Any
) -> None:
    """Run the suite that `load` gives, once its data is there."""
    _check_options(**options)
    console = new_console()
    with step(console, f"{what} data, scale {scale:g} ..."):
        suite = load()
    _run_suite(context, console, scale, suite, **options)


def _is_isolated(engines: tuple[str, ...], isolated: bool) -> bool:
    return isolated or any(name in PEERS for name in engines)


def _check_options(
    engines: tuple[str, ...], check: bool, workers: int, services: int, isolated: bool, **others: Any
) -> None:
    if workers and _is_isolated(engines, isolated):
        raise click.BadParameter(
            "engines in processes of their own run without workers", param_hint="--cluster"
        )
    if check and "volley" not in engines:
        raise click.BadParameter(
            "nothing to compare: --engines does not include volley", param_hint="--check"
        )
    if check and "spark" not in engines and _is_isolated(engines, isolated):
        raise click.BadParameter(
            "nothing to compare with: --engines does not include spark", param_hint="--check"
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
    isolated: bool,
) -> None:
    cores = cores_of(master)
    chosen_settings = {**suite.settings, **parse_settings(settings)}
    if _is_isolated(engines, isolated):
        # Their rows are always compared: nothing else shows whether they did the same work.
        run_isolated(
            console,
            scale,
            suite,
            engines=engines,
            runs=runs,
            json_file=json_file,
            master=master,
            cores=cores,
            settings=chosen_settings,
        )
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
        advance = advance_runs(bar, len(suite.queries) * len(engines) * (runs + 1), runs)
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
