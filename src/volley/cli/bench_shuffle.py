# SPDX-License-Identifier: Apache-2.0
"""`volley bench shuffle`: measures one exchange through every kind of store."""

from __future__ import annotations

from pathlib import Path

import click

from volley.bench.shuffle import SPARK, WAYS, folder_cases, measure, measure_spark, shuffle_table
from volley.bench.spark import start_spark
from volley.bench.writers import ExchangeCase
from volley.cli.console import counting_bar, json_option, new_console, runs_option, save
from volley.process.machine import available_cores


@click.command()
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=6_000_000,
    show_default=True,
    help="Rows to exchange, about 60 bytes each.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Partitions of the exchange.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    default=available_cores(),
    show_default=True,
    help="Cores of the writer and of the reader.",
)
@runs_option("exchanges through each store")
@click.option("--spark", "with_spark", is_flag=True, help="Also measure Spark's shuffle of the same rows.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    help="Also measure this object store, such as s3://bucket/folder. Repeatable.",
)
@json_option
def shuffle(
    rows: int,
    partitions: int,
    cores: int,
    runs: int,
    with_spark: bool,
    stores: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Measure a hash exchange in process, on this host, over TCP, over shuffle servers and in a folder.

    \b
    Example:
      volley bench shuffle --rows 1000000 --spark --json shuffle.json
    """
    console = new_console()
    ways = (*WAYS, *(way for store in stores for way in folder_cases(store)))
    with counting_bar(console) as bar:
        task = bar.add_task("", total=(len(ways) + with_spark) * (runs + 1))

        def advance(way: ExchangeCase, run: int) -> None:
            description = f"{way.distance}, {way.medium}" + ("" if way == SPARK else f", {way.compression}")
            bar.update(task, description=description, advance=1)

        exchanges = list(measure(rows, partitions, cores, runs, ways, advance))
        if with_spark:
            spark = start_spark("volley bench shuffle", f"local[{cores}]", {})
            exchanges.append(measure_spark(spark, rows, partitions, runs, advance))
            spark.stop()
    console.print(shuffle_table(exchanges))
    results = {
        "rows": rows,
        "partitions": partitions,
        "cores": cores,
        "runs": runs,
        "exchanges": [exchange.to_dict() for exchange in exchanges],
    }
    save(console, json_file, results)
