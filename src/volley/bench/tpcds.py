# SPDX-License-Identifier: Apache-2.0
"""TPC-DS: generates the data as Parquet and the texts of the 99 queries, once per machine and scale.

Both come from DuckDB's extension `tpcds`, which has the specification's generator, and its templates filled in.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from volley.bench.data import GenerationFailed, cache_directory, generate_once
from volley.bench.duckdb import HINT, connect

QUERIES: tuple[str, ...] = tuple(f"q{number:02}" for number in range(1, 100))
SETTINGS = {"spark.sql.ansi.enabled": "false"}
"""Some queries divide by sums that are zero for little data."""

_TEXTS = "queries"
# Several files, so that several workers share the large tables.
_ROWS_PER_FILE = 100_000


def tpcds_data(scale: float, directory: Path | None = None) -> Path:
    """Return the directory with one folder per table and one of query texts; generate it if it does not exist."""
    try:
        version = metadata.version("duckdb-extension-tpcds")
    except metadata.PackageNotFoundError:
        raise GenerationFailed("the TPC-DS generator is not installed.", hint=HINT) from None
    home = directory or cache_directory("tpcds")
    return generate_once(
        home / f"scale-{scale:g}-duckdb-{version}", "TPC-DS", lambda partial: _generate(scale, partial)
    )


def tables(data: Path) -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in data.iterdir() if folder.name != _TEXTS))


def query_text(data: Path, name: str) -> str:
    return (data / _TEXTS / f"{name}.sql").read_text(encoding="utf-8")


def _generate(scale: float, target: Path) -> None:
    connection = connect("tpcds")
    connection.execute(f"call dsdgen(sf={scale:g})")
    for (table,) in connection.execute("show tables").fetchall():
        _write(connection, table, target / table)
    (target / _TEXTS).mkdir()
    for number, text in connection.execute("select query_nr, query from tpcds_queries()").fetchall():
        # Spark reads names in backticks only.
        statement = text.strip().rstrip(";").replace('"', "`") + "\n"
        (target / _TEXTS / f"q{number:02}.sql").write_text(statement, encoding="utf-8")
    connection.close()


def _write(connection: Any, table: str, folder: Path) -> None:
    folder.mkdir()
    (rows,) = connection.execute(f"select count(*) from {table}").fetchone()
    for part, start in enumerate(range(0, max(rows, 1), _ROWS_PER_FILE)):
        chosen = f"select * from {table} limit {_ROWS_PER_FILE} offset {start}"
        connection.execute(f"copy ({chosen}) to '{folder}/part-{part:03}.parquet' (format parquet)")
