# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own: what one cannot do is said by name, and rows are compared whatever their types."""

from __future__ import annotations

import os
import signal
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from volley.bench import clicks, h2o, pipeline
from volley.bench.engines import Run
from volley.bench.peers.approximate_rows import approximate_difference
from volley.bench.peers.engine_process import EngineProcess, EngineSetup, QueryNotRun
from volley.bench.peers.environments import EngineUnavailable, engine_python
from volley.bench.peers.processes import ProcessTree
from volley.bench.peers.run import Failure, PeerResults, Task, run_peers
from volley.bench.peers.table import engine_lines, peers_table
from volley.bench.run import Result


def nothing(*_: object) -> None:
    pass


def test_a_query_that_an_engine_cannot_run_is_named_and_the_rest_goes_on(
    tpch_directory: Path, tmp_path: Path
) -> None:
    results = PeerResults(0.01, {}, suite="TPC-H")
    setup = EngineSetup(tpch_directory, ("nation", "region"), 1, {})
    tasks = [
        Task("q01", "select count(*) as n from nation"),
        Task("q02", "select no_such_column from nation"),
        Task("q03", "select r_name from region order by r_name"),
        Task("q04", program=tmp_path / "program.py"),
    ]
    run_peers(results, ["datafusion"], setup, tasks, 2, tmp_path, nothing)
    assert [(result.query, result.best.table.num_rows) for result in results.results] == [
        ("q01", 1),
        ("q03", 5),
    ]
    assert [(failure.engine, failure.query) for failure in results.failures] == [
        ("datafusion", "q02"),
        ("datafusion", "q04"),
    ]
    assert "PySpark program" in results.failures[1].message
    assert set(results.versions["datafusion"]) == {"datafusion"}
    best = results.results[0].best
    assert best.peak_bytes is not None
    assert best.peak_bytes > 2**20
    assert best.cpu_seconds is not None
    assert len(results.results[0].all_seconds) == 2
    assert any(line.startswith("datafusion cannot run q02") for line in engine_lines(results))


def test_a_process_that_has_ended_is_an_engine_that_is_gone(tpch_directory: Path) -> None:
    setup = EngineSetup(tpch_directory, ("nation",), 1, {})
    with EngineProcess("datafusion", setup) as engine:
        with pytest.raises(QueryNotRun):
            engine.run("select")
        assert engine.run("select 1 as one").table.to_pylist() == [{"one": 1}]
        assert ProcessTree(os.getpid()).pids().count(engine.pid) == 1
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="its process ended"):
            engine.run("select 1")


@pytest.mark.slow
def test_an_engine_that_cannot_be_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(EngineUnavailable, match="cannot be installed"):
        engine_python("polars", tmp_path / "environments")
    assert [entry for entry in (tmp_path / "environments").iterdir() if entry.is_dir()] == []


class TestRows:
    def test_types_do_not_count(self) -> None:
        spark = pa.table(
            {
                "n": pa.array([1, 2], pa.int64()),
                "average": pa.array([Decimal("0.333333"), None], pa.decimal128(12, 6)),
                "day": [date(2024, 1, 1), None],
                "text": ["a", "b"],
            }
        )
        other = pa.table(
            {
                "N": pa.array([2, 1], pa.int32()),
                "AVG": [None, 1 / 3],
                "Day": pa.array([None, datetime(2024, 1, 1)], pa.timestamp("us")),
                "Text": pa.array(["b", "a"], pa.large_string()),
            }
        )
        assert approximate_difference(spark, other) is None

    @pytest.mark.parametrize(
        ("values", "words"),
        [([1, 3], "expected"), ([1], "2 rows expected, 1 found"), ([1, None], "expected")],
    )
    def test_other_rows_are_found(self, values: list[int | None], words: str) -> None:
        assert words in str(approximate_difference(pa.table({"n": [1, 2]}), pa.table({"n": values})))

    def test_one_more_in_the_last_digit_of_a_large_number_is_a_difference(self) -> None:
        assert approximate_difference(pa.table({"n": [10_000_001]}), pa.table({"n": [10_000_002]}))
        assert approximate_difference(pa.table({"n": [1.0]}), pa.table({"n": [1.001]}))


def test_totals_are_about_what_every_engine_ran() -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})

    def result(query: str, engine: str, seconds: float, peak: int) -> Result:
        run = Run(empty, seconds, cpu_seconds=2 * seconds, peak_bytes=peak)
        return Result(query, engine, run, seconds, (seconds,))

    results = PeerResults(
        1.0,
        {},
        [
            result("q01", "volley", 1.0, 10),
            result("q01", "polars", 2.0, 5),
            result("q02", "volley", 3.0, 20),
        ],
        failures=[Failure("polars", "q02", "no correlated subqueries"), Failure("daft", "", "not installed")],
    )
    assert results.common_queries == ["q01"]
    assert (results.total_seconds("volley"), results.total_seconds("polars")) == (1.0, 2.0)
    assert (results.cpu_seconds("polars"), results.peak_bytes("volley")) == (4.0, 20)
    assert results.ratio_to_volley("polars") == 2.0
    assert peers_table(results).row_count == 2 + 5
    lines = engine_lines(results)
    assert "polars cannot run q02: no correlated subqueries" in lines
    assert "daft is left out: not installed" in lines
    assert results.to_dict()["engines"]["polars"]["answered"] == 1


class TestSuites:
    def test_page_views_are_wide_and_the_same_each_time(self, tmp_path: Path) -> None:
        first, second = (clicks.clicks_data(0.0001, tmp_path / name) for name in ("a", "b"))
        tables = [pq.read_table(data / "views") for data in (first, second)]
        assert tables[0].equals(tables[1])
        assert tables[0].num_columns == 95
        assert len(clicks.QUERIES) == 43
        assert all(clicks.query_text(query).lower().startswith("select") for query in clicks.QUERIES)

    def test_keys_of_groups_and_joins(self, tmp_path: Path) -> None:
        data = h2o.h2o_data(0.0001, tmp_path)
        x = pq.read_table(data / "x")
        assert x.num_rows == 1000
        keys = pq.read_table(data / "big")["id6"].to_numpy()
        assert set(np.unique(x["id6"].to_numpy())) <= set(keys)
        assert len(keys) == len(set(keys))

    def test_orders_have_mistakes_in_them(self, tmp_path: Path) -> None:
        orders = "".join(
            file.read_text() for file in (pipeline.pipeline_data(0.0002, tmp_path) / "orders").iterdir()
        )
        assert "unknown" in orders
        assert "n/a" in orders
