# SPDX-License-Identifier: Apache-2.0
"""The benchmark must not flatter: its data is whole, its figures are what ran, and a wrong row makes it fail."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from volley.bench.data import TABLES, GenerationFailed, cache_directory, tpch_data
from volley.bench.engines import DataFusion, Embedded, Engine, Run, Spark, Volley, cores_of
from volley.bench.queries import QUERIES, parse_queries, query_text
from volley.bench.run import Result, Results, run_queries
from volley.bench.shuffle import SPARK, measure_spark
from volley.bench.table import results_table
from volley.errors import ConfigError, VolleyError
from volley.testing.session import conf


def nothing(*_: object) -> None:
    pass


class TestData:
    def test_every_table_has_rows_in_several_files(self, tpch_directory: Path) -> None:
        assert pq.ParquetDataset(tpch_directory / "lineitem").read(["l_orderkey"]).num_rows == 60175
        assert len(list((tpch_directory / "lineitem").iterdir())) == 4
        assert {entry.name for entry in tpch_directory.iterdir()} == set(TABLES)

    def test_it_is_generated_once(self, tmp_path: Path) -> None:
        first = tpch_data(0.001, tmp_path)
        before = {file: file.stat().st_ino for file in first.rglob("*.parquet")}
        assert tpch_data(0.001, tmp_path) == first
        assert {file: file.stat().st_ino for file in first.rglob("*.parquet")} == before

    def test_two_at_once_make_one(self, tmp_path: Path) -> None:
        found: list[Path] = []
        threads = [
            threading.Thread(target=lambda: found.append(tpch_data(0.001, tmp_path))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        assert [entry for entry in tmp_path.iterdir() if entry.is_dir()] == [found[0]]

    def test_what_an_interrupted_run_left_is_not_data(self, tmp_path: Path) -> None:
        complete = tpch_data(0.001, tmp_path)
        broken = tmp_path / "other"
        (broken / f".{complete.name}.partial" / "lineitem").mkdir(parents=True)
        (broken / f".{complete.name}.partial" / "lineitem" / "lineitem.1.parquet").write_bytes(b"half")
        again = tpch_data(0.001, broken)
        assert pq.ParquetDataset(again / "lineitem").read(["l_orderkey"]).num_rows > 0
        assert not (broken / f".{complete.name}.partial").exists()

    def test_a_generator_that_fails_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generator = tmp_path / "bin" / "tpchgen-cli"
        generator.parent.mkdir()
        generator.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
        generator.chmod(generator.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sys.executable", str(generator.with_name("python")))
        with pytest.raises(GenerationFailed, match="status 3: no space left"):
            tpch_data(0.001, tmp_path / "data")
        assert [entry for entry in (tmp_path / "data").iterdir() if entry.is_dir()] == []

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(VolleyError, match="Choose another directory"):
            tpch_data(0.001, tmp_path / "file" / "data")

    def test_the_cache_follows_xdg(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_directory() == tmp_path / "volley" / "tpch"


class TestQueries:
    def test_there_are_22(self) -> None:
        assert len(QUERIES) == 22
        assert all(query_text(query).strip().lower().startswith(("select", "with")) for query in QUERIES)

    @pytest.mark.parametrize(
        ("text", "names"), [("", QUERIES), ("q05,q01", ("q05", "q01")), ("1, 22,1", ("q01", "q22"))]
    )
    def test_a_list_is_read(self, text: str, names: tuple[str, ...]) -> None:
        assert parse_queries(text) == names

    @pytest.mark.parametrize("text", ["q23", "0", "lineitem"])
    def test_an_unknown_one_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="q01 to q22"):
            parse_queries(text)


class TestCores:
    @pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2)])
    def test_of_a_local_master(self, master: str, cores: int) -> None:
        assert cores_of(master) == cores

    def test_star_is_what_this_process_may_use(self) -> None:
        assert cores_of("local[*]") == len(os.sched_getaffinity(0))

    def test_a_cluster_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"local\[n\]"):
            cores_of("spark://host:7077")


class Wrong:
    """Volley's name, one row too few: what `check` is for."""

    name = "volley"

    def __init__(self, engine: Spark) -> None:
        self._engine = engine

    def run(self, sql: str) -> Run:
        table = self._engine.run(sql).table
        return Run(table.slice(0, table.num_rows - 1), 0.1, native=True)


class TestRun:
    def test_three_engines_side_by_side(self, tpch: SparkSession, tpch_directory: Path) -> None:
        order: list[tuple[str, str, int]] = []
        engines: list[Engine] = [Volley(tpch), Spark(tpch), DataFusion(tpch_directory, 2)]
        results = Results(0.01, {})
        results.results.extend(run_queries(tpch, engines, ["q06"], 2, True, lambda *step: order.append(step)))
        assert order == [
            ("q06", engine, run) for run in range(3) for engine in ("volley", "spark", "datafusion")
        ]
        ours, sparks, plain = (results.of("q06", name) for name in ("volley", "spark", "datafusion"))
        assert ours is not None
        assert sparks is not None
        assert plain is not None
        assert (ours.best.native, ours.best.spark_tasks, ours.rows_match) == (True, 0, True)
        assert sparks.best.spark_tasks is not None
        assert sparks.best.spark_tasks > 0
        assert len(ours.all_seconds) == 2
        assert ours.seconds == min(ours.all_seconds)
        parts = (ours.best.planning_seconds, ours.best.capture_seconds, ours.best.execution_seconds)
        assert all(part is not None and part > 0 for part in parts)
        assert sum(part or 0.0 for part in parts) <= ours.seconds
        record = json.loads(json.dumps(results.to_dict()))["results"][0]
        assert (
            record
            | {
                "query": "q06",
                "engine": "volley",
                "native": True,
                "spark_tasks": 0,
                "rows_match": True,
            }
            == record
        )

    def test_volley_in_this_process_beside_volley_on_workers(self, tpch: SparkSession) -> None:
        """With nobody to reach there, only the one in this process can answer natively."""
        nowhere = {"spark.volley.transport": "flight", "spark.volley.workers": "127.0.0.1:1"}
        engines = [Volley(tpch), Embedded(tpch)]
        with conf(tpch, nowhere):
            with pytest.warns(UserWarning, match="NO_WORKERS"):
                results = list(run_queries(tpch, engines, ["q06"], 1, True, nothing))
            assert tpch.conf.get("spark.volley.transport") == "flight"
        assert [result.best.native for result in results] == [False, True]

    def test_a_missing_row_is_found(self, tpch: SparkSession) -> None:
        results = Results(0.01, {})
        results.results.extend(run_queries(tpch, [Wrong(Spark(tpch))], ["q01"], 1, True, nothing))
        assert [result.query for result in results.differing] == ["q01"]
        assert "4 rows expected, 3 found" in str(results.differing[0].difference)

    def test_without_check_nothing_is_claimed(self, tpch: SparkSession) -> None:
        (result,) = run_queries(tpch, [Wrong(Spark(tpch))], ["q06"], 1, False, nothing)
        assert result.rows_match is None


class TestFigures:
    def results(self) -> Results:
        empty = pa.table({"a": pa.array([], pa.int64())})

        def result(query: str, engine: str, seconds: float, planning: float | None = None) -> Result:
            run = Run(empty, seconds, planning_seconds=planning)
            return Result(query, engine, run, run.own_seconds, (seconds,))

        return Results(
            1.0,
            {},
            [
                result("q01", "volley", 1.5, planning=0.5),
                result("q01", "spark", 6.0),
                result("q01", "datafusion", 0.5),
                result("q01", "embedded", 1.0, planning=0.6),
                result("q02", "volley", 1.0, planning=0.5),
                result("q02", "spark", 1.0),
                result("q02", "datafusion", 1.0),
                result("q02", "embedded", 1.7, planning=0.45),
            ],
        )

    def test_ratios(self) -> None:
        results = self.results()
        assert results.ratio_to_spark("q01") == 4.0
        assert results.ratio_to_datafusion("q01") == 2.0
        assert results.geometric_mean(results.ratio_to_spark) == pytest.approx(2.0)
        assert results.geometric_mean(results.ratio_to_datafusion) == pytest.approx(1.0)
        assert results.ratio_to_embedded("q01") == pytest.approx(2.5)
        assert results.geometric_mean(results.ratio_to_embedded) == pytest.approx(1.0)

    def test_an_engine_that_did_not_run_has_no_ratio(self) -> None:
        results = self.results()
        results.results = [result for result in results.results if result.engine != "spark"]
        assert results.ratio_to_spark("q01") is None
        assert results.geometric_mean(results.ratio_to_spark) is None
        assert "to Spark" not in [column.header for column in results_table(results).columns]


def test_sparks_shuffle_stands_beside_ours(spark: SparkSession) -> None:
    exchange = measure_spark(spark, 1000, 2, 1, nothing)
    assert (exchange.way, exchange.rows) == (SPARK, 1000)
    assert exchange.seconds > 0
