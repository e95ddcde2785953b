# SPDX-License-Identifier: Apache-2.0
"""`volley bench growth`: time and memory as data, files, columns and concurrent queries grow."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

import volley
from volley.bench.engines import register_tables
from volley.bench.environment import environment
from volley.bench.growth import Point, grow_columns, grow_concurrency, grow_files, grow_scale, growth_table
from volley.bench.queries import parse_queries
from volley.bench.spark import start_spark
from volley.cli.console import generate_with_progress, json_option, new_console, runs_option, save, step
from volley.process.machine import available_cores

_ENGINES = ("volley", "spark")


def _sizes(kind: Callable[[str], float]) -> Callable[..., tuple[float, ...]]:
    def parse(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        try:
            found = tuple(sorted({kind(part) for part in value.split(",") if part.strip()}))
        except ValueError:
            found = (0,)
        if any(size <= 0 for size in found):
            raise click.BadParameter("expected numbers above 0, separated by commas, or nothing")
        return found

    return parse


@click.command()
@click.option(
    "--scales", default="0.1,1", show_default=True, callback=_sizes(float), help="TPC-H scale factors."
)
@click.option(
    "--files", default="100,1000,10000", show_default=True, callback=_sizes(int), help="Numbers of files."
)
@click.option(
    "--columns", default="10,100,1000", show_default=True, callback=_sizes(int), help="Numbers of columns."
)
@click.option(
    "--concurrent",
    default="1,10,50",
    show_default=True,
    callback=_sizes(int),
    help="Queries at a time, in threads.",
)
@click.option("--queries", default="", help="The TPC-H queries of --scales, such as q01,q05. Default: all.")
@click.option(
    "--engines",
    default=",".join(_ENGINES),
    show_default=True,
    help="The engines to measure. Spark schedules concurrent queries with its FAIR scheduler.",
)
@runs_option("runs of each query")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for TPC-H data. Default: the cache.",
)
@json_option
def growth(
    scales: tuple[float, ...],
    files: tuple[int, ...],
    columns: tuple[int, ...],
    concurrent: tuple[int, ...],
    queries: str,
    engines: str,
    runs: int,
    data: Path | None,
    json_file: Path | None,
) -> None:
    """Measure how time and memory grow. An empty list leaves a measurement out.

    Each scale runs in a fresh process, whose largest memory is reported. Concurrent queries read the smallest scale.

    \b
    Examples:
      volley bench growth --scales 0.1,1,10 --files "" --columns "" --concurrent ""
      volley bench growth --scales 0.1 --files 100,10000,100000 --json growth.json
    """
    names = [name.strip() for name in engines.split(",") if name.strip()]
    if not names or set(names) - set(_ENGINES):
        raise click.BadParameter(f"expected some of {', '.join(_ENGINES)}", param_hint="--engines")
    chosen = parse_queries(queries)
    console = new_console()

    def tell(text: str) -> None:
        console.print(f"{text} ...", highlight=False)

    cores = available_cores()
    master = f"local[{cores}]"
    points: list[Point] = []
    for scale in scales:
        generate_with_progress(console, scale, data)
    points += grow_scale(scales, names, chosen, cores, runs, data, tell)
    settings = {"spark.scheduler.mode": "FAIR", "spark.sql.shuffle.partitions": str(2 * cores)}
    with step(console, "Starting Spark ..."):
        spark = start_spark("volley bench growth", master, settings)
        volley.enable(spark)
    with tempfile.TemporaryDirectory(prefix="volley-growth-") as directory:
        points += grow_files(spark, files, names, runs, Path(directory), tell)
        points += grow_columns(spark, columns, names, runs, Path(directory), tell)
    if concurrent:
        register_tables(spark, generate_with_progress(console, scales[0] if scales else 0.1, data))
        points += grow_concurrency(spark, concurrent, names, tell)
    described = environment(spark, master, cores, settings)
    spark.stop()
    console.print(growth_table(points))
    save(console, json_file, {"environment": described, "points": [point.to_dict() for point in points]})
