# SPDX-License-Identifier: Apache-2.0
"""The data of the job in `programs/pipeline.py`: CSV files of orders and customers, with mistakes in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from volley.bench.data import cache_directory, generate_once
from volley.bench.programs import pipeline as program

ROWS_PER_SCALE = 5_000_000
QUERIES = ("pipeline",)
PROGRAM = Path(program.__file__)
_VERSION = 1
_FILES = 4
_BROKEN_SHARE = 0.02
_SENT_TWICE = 50
_COUNTRIES = np.array(["de", "fr", "pl", "es", "it", "se", "fi", "nl"])
_DOMAINS = np.array(["mail.example.com", "example.org", "eu.example.net", "post.example.de"])
_PRODUCTS = np.array([" Lamp", "chair ", "Table", "desk", "SHELF", "sofa", ""])


def pipeline_data(scale: float, directory: Path | None = None) -> Path:
    """Return the directory with a folder of CSV files per table; generate it if it does not exist."""
    home = directory or cache_directory("pipeline")
    return generate_once(
        home / f"scale-{scale:g}-v{_VERSION}", "Pipeline", lambda partial: _generate(scale, partial)
    )


def _generate(scale: float, target: Path) -> None:
    rows = max(1000, round(ROWS_PER_SCALE * scale))
    customers = max(100, rows // 20)
    for folder in ("orders", "customers"):
        (target / folder).mkdir()
    for part in range(_FILES):
        draw = np.random.default_rng([_VERSION, part])
        _write(target / "orders" / f"part-{part}.csv", _orders(draw, part, rows // _FILES, customers))
    draw = np.random.default_rng(_VERSION)
    names = draw.integers(0, 10**6, customers)
    domains = _DOMAINS[draw.integers(0, len(_DOMAINS), customers)]
    columns = {
        "customer_id": np.arange(customers),
        "email": [f"user{name}@{domain}" for name, domain in zip(names, domains, strict=True)],
        "country": _COUNTRIES[draw.integers(0, len(_COUNTRIES), customers)],
    }
    _write(target / "customers" / "part-0.csv", pa.table(columns))


def _orders(draw: np.random.Generator, part: int, rows: int, customers: int) -> pa.Table:
    days = np.datetime64("2024-01-01") + draw.integers(0, 366, rows).astype("timedelta64[D]")
    quantity = draw.integers(1, 50, rows).astype(str)
    price = (draw.integers(100, 100_000, rows) / 100).astype(str)
    broken = draw.random(rows) < _BROKEN_SHARE
    table = pa.table(
        {
            "order_id": np.arange(rows) * _FILES + part,
            "customer_id": draw.integers(0, customers, rows),
            "product": _PRODUCTS[draw.integers(0, len(_PRODUCTS), rows)],
            "quantity": np.where(broken, "unknown", quantity),
            "price": np.where(draw.random(rows) < _BROKEN_SHARE, "n/a", price),
            "ordered_at": days.astype(str),
        }
    )
    # Some orders were sent twice. The copies are equal, so it does not matter which one stays.
    return pa.concat_tables([table, table.slice(0, rows // _SENT_TWICE)])


def _write(file: Path, table: pa.Table) -> None:
    with file.open("wb") as sink:
        csv.write_csv(table, sink)
