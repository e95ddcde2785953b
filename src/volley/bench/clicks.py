# SPDX-License-Identifier: Apache-2.0
"""Page views: one wide table and 43 queries of the kind that web analytics asks, over data of our own.

A query reads few of the columns, most values repeat, and texts are long and skewed: what TPC-H does not have.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from volley.bench.columns import map_numbers
from volley.bench.data import cache_directory, generate_once

ROWS_PER_SCALE = 10_000_000
TABLES = ("views",)
QUERIES: tuple[str, ...] = tuple(f"q{number:02}" for number in range(1, 44))
_VERSION = 1
_FILES = 4
_ROWS_PER_BATCH = 250_000
_SECONDS_PER_MONTH = 31 * 24 * 3600
_START = np.datetime64("2024-07-01T00:00:00", "us")
# Columns that no query reads, as in real tables of events.
_OTHERS = 70

_WORDS = (
    *("auto", "weather", "market", "cinema", "games", "music", "travel", "news", "health", "recipes"),
    *("football", "tickets", "school", "garden", "phones", "flats", "maps", "forum", "photo", "video"),
    *("books", "cheap", "online", "repair", "city", "summer"),
)


@cache
def _texts() -> tuple[str, ...]:
    text = resources.files("volley.bench").joinpath("clicks.sql").read_text(encoding="utf-8")
    return tuple(part.strip() for part in text.partition("\n\n")[2].split(";") if part.strip())


def query_text(name: str) -> str:
    return _texts()[QUERIES.index(name)]


def clicks_data(scale: float, directory: Path | None = None) -> Path:
    """Return the directory with the table; generate it if it does not exist."""
    home = directory or cache_directory("clicks")
    return generate_once(
        home / f"scale-{scale:g}-v{_VERSION}", "Page view", lambda partial: _generate(scale, partial)
    )


def _generate(scale: float, target: Path) -> None:
    rows = max(1000 * _FILES, round(ROWS_PER_SCALE * scale))
    (target / "views").mkdir()
    for part in range(_FILES):
        draw = np.random.default_rng([_VERSION, part])
        batch = _views(draw, min(rows // _FILES, _ROWS_PER_BATCH), rows)
        with pq.ParquetWriter(target / "views" / f"part-{part}.parquet", batch.schema) as writer:
            writer.write_table(batch)
            left = rows // _FILES - len(batch)
            while left:
                batch = _views(draw, min(left, _ROWS_PER_BATCH), rows)
                writer.write_table(batch)
                left -= len(batch)


def _views(draw: np.random.Generator, count: int, rows: int) -> pa.Table:
    times = _START + np.sort(draw.integers(0, _SECONDS_PER_MONTH, count)).astype("timedelta64[s]")
    users = draw.zipf(1.3, count) % max(10, rows // 20)
    pages = draw.zipf(1.2, count) % max(10, rows // 50)
    sites = draw.zipf(1.5, count) % 5000
    searches = draw.zipf(1.3, count) % max(10, rows // 100)
    phones = draw.integers(0, 60, count) * (draw.random(count) < 0.3)
    columns = {
        "view_id": draw.integers(1, 2**62, count),
        "event_time": times,
        "event_date": times.astype("datetime64[D]"),
        "site_id": sites.astype(np.int32),
        "user_id": (users * 2654435761 % 2**40).astype(np.int64),
        "client_ip": draw.integers(0, 2**31 - 1, count).astype(np.int32) // 97 * 97,
        "region_id": (draw.zipf(1.4, count) % 900).astype(np.int32),
        "url": map_numbers(
            pages, lambda n: f"http://{_word(n)}.example/{_word(n // 7)}/{_word(n // 11)}?id={n}"
        ),
        "title": map_numbers(pages, lambda n: f"{_word(n)} {_word(n // 5)} {_word(n // 9)}".title()),
        "referrer": map_numbers(
            pages * 3 % (rows // 20 + 1) * (draw.random(count) < 0.6),
            lambda n: f"https://www.{_word(n)}.example/search/{n}" if n else "",
        ),
        "search_phrase": map_numbers(
            searches * (draw.random(count) < 0.15), lambda n: f"{_word(n)} {_word(n // 3)} {n}" if n else ""
        ),
        "search_engine_id": (draw.integers(0, 30, count) * (draw.random(count) < 0.2)).astype(np.int16),
        "ad_engine_id": (draw.integers(0, 20, count) * (draw.random(count) < 0.05)).astype(np.int16),
        "phone_kind": (phones % 7).astype(np.int16),
        "phone_model": map_numbers(phones, lambda n: f"model {_word(n)}" if n else ""),
        "screen_width": (draw.integers(6, 30, count) * 64).astype(np.int16),
        "window_width": (draw.integers(3, 30, count) * 64).astype(np.int16),
        "window_height": (draw.integers(3, 20, count) * 54).astype(np.int16),
        "is_refresh": (draw.random(count) < 0.1).astype(np.int16),
        "is_uncounted": (draw.random(count) < 0.02).astype(np.int16),
        "is_link": (draw.random(count) < 0.05).astype(np.int16),
        "is_download": (draw.random(count) < 0.01).astype(np.int16),
        "source_id": draw.integers(-1, 10, count).astype(np.int16),
        "url_hash": pages.astype(np.int64) * 11400714819323 % 2**50,
        "referrer_hash": pages.astype(np.int64) * 3 * 11400714819323 % 2**50,
    }
    for number in range(_OTHERS):
        columns[f"other_{number:02}"] = (draw.integers(0, 2 + number, count)).astype(np.int32)
    return pa.table(columns)


def _word(number: int) -> str:
    return _WORDS[number % len(_WORDS)]
