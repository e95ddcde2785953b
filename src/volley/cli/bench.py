"""`volley bench`: the same queries on several engines, side by side."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

import volley
from volley.bench.engines import DataFusion, Engine, Spark, Volley, cores_of, session
from volley.bench.environment import environment
from volley.bench.feed import Pace, feed_table
from volley.bench.feed import measure as measure_feed
from volley.bench.queries import parse_queries
from volley.bench.run import Results, run_queries
from volley.bench.shuffle import SPARK, WAYS, measure, measure_spark, shuffle_table
from volley.bench.spark import start_spark
from volley.bench.table import results_table
from volley.bench.writers import Way
from volley.cli.console import generate_with_progress, new_console, parse_settings, progress_bar, step
from volley.cluster import LocalCluster
from volley.machine import available_cores, available_memory_bytes

# Options of workers rather than of sessions.
SHUFFLE = "spark.volley.shuffle."
ENGINES = ("volley", "spark", "datafusion")


@click.group()
def bench() -> None:
    """Compare Volley with Spark and DataFusion.

    Example: volley bench tpch --scale 1
    """


def _engine_names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    unknown = [name for name in names if name not in ENGINES]
    if unknown or not names:
        raise click.BadParameter(f"expected some of {', '.join(ENGINES)}")
    return names


@bench.command()
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="TPC-H scale factor; 1 is about 1 GB as text.",
)
@click.option(
    "--engines",
    default=",".join(ENGINES),
    show_default=True,
    callback=_engine_names,
    help="Which engines, in this order.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Timed runs of each query on each engine, after one warm-up; the best counts.",
)
@click.option("--queries", default="", help="Only these, such as q01,q05; otherwise all 22.")
@click.option("--check", is_flag=True, help="Compare Volley's rows with Spark's; status 1 when one differs.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here as JSON.",
)
@click.option(
    "--master",
    default=f"local[{available_cores()}]",
    show_default=True,
    help="Spark's master, local[n]; every engine gets n cores.",
)
@click.option(
    "--cluster",
    "workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Run Volley on so many worker daemons of this machine, started for it; 0: in this process.",
)
@click.option(
    "--services",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --cluster: so many shuffle servers keep exchanged data; 0: the workers do.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark or Volley option; repeatable."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where TPC-H data is kept; otherwise the user's cache.",
)
@click.pass_context
def tpch(
    context: click.Context,
    scale: float,
    engines: tuple[str, ...],
    runs: int,
    queries: str,
    check: bool,
    json_file: Path | None,
    master: str,
    workers: int,
    services: int,
    settings: tuple[str, ...],
    data: Path | None,
) -> None:
    """The 22 TPC-H queries. Data is generated once and kept.

    \b
    Examples:
      volley bench tpch --scale 1 --check --json results.json
      volley bench tpch --scale 0.1 --queries q01,q05 --set spark.volley.local.workers=3
      volley bench tpch --scale 1 --cluster 2
      volley bench tpch --scale 0.1 --cluster 3 --services 3
    """
    if check and "volley" not in engines:
        raise click.BadParameter(
            "there is nothing to compare without volley in --engines", param_hint="--check"
        )
    if services and not workers:
        raise click.BadParameter("shuffle servers need workers: give --cluster", param_hint="--services")
    console = new_console()
    chosen = parse_queries(queries)
    cores = cores_of(master)
    directory = generate_with_progress(console, scale, data)
    chosen_settings = parse_settings(settings)
    if workers:
        with step(console, f"Starting {workers} workers ..."):
            cluster = LocalCluster(
                workers,
                cores=max(1, cores // workers),
                memory=f"{available_memory_bytes() // 2 // (workers + services) >> 20}m",
                services=services,
                settings={key: value for key, value in chosen_settings.items() if key.startswith(SHUFFLE)},
            )
            # Taken down when the command ends, however it ends.
            context.with_resource(cluster)
        chosen_settings = cluster.settings | chosen_settings
    with step(console, "Starting Spark ..."):
        spark = session(master, chosen_settings, directory)
        sides: dict[str, Engine] = {}
        for name in engines:
            match name:
                case "volley":
                    sides[name] = Volley(spark)
                case "spark":
                    sides[name] = Spark(spark)
                case _:
                    sides[name] = DataFusion(directory, cores)
    results = Results(scale, environment(spark, master, cores, chosen_settings))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(console, *columns) as bar:
        task = bar.add_task("", total=len(chosen) * len(engines) * (runs + 1))

        def advance(query: str, engine: str, round_number: int) -> None:
            step = f"run {round_number} of {runs}" if round_number else "warm-up"
            bar.update(task, description=f"{query}  {engine}, {step}", advance=1)

        results.results.extend(run_queries(spark, list(sides.values()), chosen, runs, check, advance))
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
    if json_file:
        json_file.write_text(json.dumps(results.to_dict(), indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {json_file}")
    sys.exit(1 if results.differing else 0)


@bench.command()
@click.option(
    "--rows", type=click.IntRange(min=1), default=6_000_000, show_default=True, help="About 60 bytes each."
)
@click.option(
    "--partitions", type=click.IntRange(min=1), default=16, show_default=True, help="Of the exchange."
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    default=available_cores(),
    show_default=True,
    help="On either side.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Timed exchanges of each way, after one warm-up; the best counts.",
)
@click.option("--spark", "with_spark", is_flag=True, help="Spark's own shuffle of the same rows too.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here as JSON.",
)
def shuffle(
    rows: int, partitions: int, cores: int, runs: int, with_spark: bool, json_file: Path | None
) -> None:
    """A hash exchange: in this process, on this host, over TCP, with each compression.

    \b
    Example:
      volley bench shuffle --rows 1000000 --spark --json shuffle.json
    """
    console = new_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(console, *columns) as bar:
        task = bar.add_task("", total=(len(WAYS) + with_spark) * (runs + 1))

        def advance(way: Way, run: int) -> None:
            description = f"{way.distance}, {way.medium}" + ("" if way == SPARK else f", {way.compression}")
            bar.update(task, description=description, advance=1)

        exchanges = list(measure(rows, partitions, cores, runs, WAYS, advance))
        if with_spark:
            spark = start_spark("volley bench shuffle", f"local[{cores}]", {})
            exchanges.append(measure_spark(spark, rows, partitions, runs, advance))
            spark.stop()
    console.print(shuffle_table(exchanges))
    if json_file:
        results = {
            "rows": rows,
            "partitions": partitions,
            "cores": cores,
            "runs": runs,
            "exchanges": [exchange.to_dict() for exchange in exchanges],
        }
        json_file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {json_file}")


@bench.command()
@click.option("--units", type=click.IntRange(min=1), default=1000, show_default=True, help="Pieces of work.")
@click.option("--rows", type=click.IntRange(min=1), default=100, show_default=True, help="Rows of each.")
@click.option(
    "--discovery",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds until the last of them is found.",
)
@click.option(
    "--read", type=click.FloatRange(min=0), default=0.01, show_default=True, help="Seconds to read one."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=available_cores(),
    show_default=True,
    help="In-process workers of one core each, and Spark's cores.",
)
@click.option("--spark/--no-spark", "with_spark", default=True, help="Plain Spark with the same source too.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here as JSON.",
)
def feed(
    units: int,
    rows: int,
    discovery: float,
    read: float,
    workers: int,
    with_spark: bool,
    json_file: Path | None,
) -> None:
    """A source that is read in two steps: time to the first row and in all, next to plain Spark.

    \b
    Example:
      volley bench feed --units 1000 --discovery 10 --json feed.json
    """
    console = new_console()
    pace = Pace(units, rows, discovery, read)
    master = f"local[{workers}]"
    settings = {"spark.volley.local.workers": str(workers), "spark.volley.local.cores": str(workers)}
    with step(console, "Starting Spark ..."):
        spark = start_spark("volley bench feed", master, settings)
        volley.enable(spark)
    engines = ("volley", "spark") if with_spark else ("volley",)
    with progress_bar(console, TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("")
        runs = measure_feed(spark, pace, engines, lambda words: bar.update(task, description=words))
    results = {
        "pace": asdict(pace),
        "environment": environment(spark, master, workers, settings),
        "runs": [run.to_dict() for run in runs],
    }
    spark.stop()
    console.print(feed_table(pace, workers, runs))
    if json_file:
        json_file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        console.print(f"Written to {json_file}")
