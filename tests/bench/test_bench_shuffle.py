# SPDX-License-Identifier: Apache-2.0
"""The measured exchange is a real one: every row arrives, by every way, and the figures are of what ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from volley.bench.shuffle import WAYS, Exchange, measure, shuffle_table
from volley.bench.writers import ExchangeCase, make_rows
from volley.cli.main import cli


@pytest.mark.slow
def test_every_way_moves_every_row(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    arguments = ["--rows", "20000", "--partitions", "3", "--cores", "1", "--runs", "1", "--json", str(file)]
    arguments += ["--store", f"file://{tmp_path}/store"]
    result = CliRunner().invoke(cli, ["bench", "shuffle", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    written = json.loads(file.read_text())
    assert [ExchangeCase(**exchange["way"]) for exchange in written["exchanges"]] == [
        *WAYS,
        *(ExchangeCase("folder", f"file://{tmp_path}/store", compression) for compression in ("none", "lz4")),
    ]
    for exchange in written["exchanges"]:
        assert exchange["rows"] == 20000
        assert exchange["seconds"] == pytest.approx(exchange["write_seconds"] + exchange["read_seconds"])
        assert exchange["rows_per_second"] == pytest.approx(20000 / exchange["seconds"])
        assert exchange["size_bytes"] == pytest.approx(make_rows(20000).nbytes, rel=0.2)


@pytest.mark.slow
def test_the_warm_up_does_not_count() -> None:
    told: list[tuple[ExchangeCase, int]] = []
    (exchange,) = measure(1000, 2, 1, 2, WAYS[:1], lambda way, run: told.append((way, run)))
    assert told == [(WAYS[0], run) for run in range(3)]
    assert exchange.way == WAYS[0]


def test_rows_are_the_same_every_time() -> None:
    assert make_rows(1000).equals(make_rows(1000))
    assert not make_rows(1000).equals(make_rows(1000, seed=2))


def test_the_table_says_what_was_measured() -> None:
    table = shuffle_table([Exchange(WAYS[0], 4_000_000, 2_000_000_000, 2.0, 1.5, 0.5)])
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["in-process", "memory", "none", "1.500", "0.500", "2.000", "2.00", "1.00"]
