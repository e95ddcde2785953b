# SPDX-License-Identifier: Apache-2.0
"""What is kept of queries: everything that happened, nothing of the data, within bounds, for several programs."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import volley
from helpers.records import query_record
from helpers.waiting import eventually
from volley.cli.main import cli
from volley.errors import ConfigError, QueryCancelled
from volley.events import Event
from volley.observe.event_data import event_data
from volley.observe.history_store import FILE, HistoryReader, HistoryStore, Limits
from volley.observe.stage_data import stages_of
from volley.query import session_state
from volley.testing.session import conf

SECRET = "hunter2-tango"
ENDLESS = "select count(*) from range(1000000000000) where (id * 3) % 7 = 3"


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Path:
    spark.conf.set("spark.volley.history.dir", str(tmp_path / "history"))
    return tmp_path / "history"


# ------------------------------------------------------------------------------------------------ of real queries


def test_queries_are_kept_with_their_stages(
    distributed: SparkSession, directory: Path, tmp_path: Path
) -> None:
    spark = distributed
    spark.conf.set("spark.volley.local.workers", "2")
    spark.range(20_000).withColumn("k", F.col("id") % 7).write.parquet(str(tmp_path / "t"))
    spark.sparkContext.setJobDescription("nightly totals")
    spark.read.parquet(str(tmp_path / "t")).groupBy("k").count().orderBy("k").collect()
    spark.sparkContext.setJobDescription("")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(3).select(F.expr("1 / (id - 1)")).collect()
    failed, grouped, written = volley.history(spark)
    assert (written.action, written.engine, written.outcome) == ("parquet", "native", "answered")
    assert (grouped.action, grouped.rows, grouped.description) == ("collect", 7, "nightly totals")
    assert grouped.caller.startswith("test_history.py:")
    report = volley.last_query(spark)
    assert report is not None
    assert (failed.query, failed.outcome, failed.error) == (report.query, "failed", "DIVIDE_BY_ZERO")
    assert failed.reasons == ("REPLAYED_ON_SPARK",)
    record = grouped.record
    stages = stages_of(record["events"])
    assert len(stages) >= 2
    assert stages[-1].inputs
    assert sum(len(stage.tasks) for stage in stages) == record["native_tasks"]
    assert {task.worker for stage in stages for task in stage.tasks} <= {"local-0", "local-1"}
    assert any(operator.get("output_rows") for stage in stages for operator in stage.operators)
    names = [event["event"] for event in record["events"]]
    assert (names[0], names[-1]) == ("QueryDecided", "QueryEnded")
    assert all(node["native"] for node in record["plan"])
    frame = volley.history(spark).to_dataframe()
    assert frame.filter("outcome = 'failed'").select("error").first()["error"] == "DIVIDE_BY_ZERO"  # type: ignore[index]
    assert "nightly totals" in str(volley.history(spark))
    assert "<table>" in volley.history(spark)._repr_html_()


def test_nothing_of_the_data_is_kept(spark: SparkSession, directory: Path, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(SECRET, 1)], "name string, n int")
    frame.write.parquet(str(tmp_path / "t"))
    stored = spark.read.parquet(str(tmp_path / "t"))
    stored.filter(stored.name == SECRET).collect()
    stored.select(F.lit(SECRET), F.concat("name", F.lit(SECRET))).collect()
    stored.select(F.expr(f"aes_encrypt(name, '{SECRET}xyz')"), F.col("name").rlike(f"{SECRET}(?=x)")).show()
    with pytest.raises(Exception, match=SECRET):
        stored.select(F.col("name").cast("int")).collect()
    assert len(volley.history(spark)) >= 5
    reader = HistoryReader(directory)
    for summary in reader.summaries():
        assert SECRET not in json.dumps(reader.get(summary["query"]))
    assert SECRET.encode() not in (directory / FILE).read_bytes()
    assert (directory / FILE).stat().st_mode & 0o077 == 0
    assert directory.stat().st_mode & 0o077 == 0


def test_a_running_query_is_seen_by_others(spark: SparkSession, directory: Path) -> None:
    def collect() -> None:
        with pytest.raises(QueryCancelled):
            spark.sql(ENDLESS).collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    reader = HistoryReader(directory)
    eventually(lambda: reader.summaries(outcome="running"))
    (seen,) = reader.summaries()
    assert seen["query"] == session_state.running(spark)[0].id
    volley.cancel(spark)
    thread.join(120)
    assert [past.outcome for past in volley.history(spark)] == ["cancelled"]


def test_no_history(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with conf(spark, {"spark.volley.history.dir": "off"}):
        assert spark.range(3).count() == 3
        with pytest.raises(ConfigError, match="no history"):
            volley.history(spark)
    (tmp_path / "file").touch()
    with (
        conf(spark, {"spark.volley.history.dir": str(tmp_path / "file" / "x")}),
        caplog.at_level(logging.DEBUG),
    ):
        assert spark.range(3).count() == 3
        assert spark.range(4).count() == 4
        assert len(volley.history(spark)) == 0
    warned = [record for record in caplog.records if "cannot be written" in record.getMessage()]
    assert [record.levelno for record in warned if record.levelno >= logging.WARNING] == [logging.WARNING]


# ------------------------------------------------------------------------------------------------ the store


def test_every_event_is_plain_data() -> None:
    def subclasses(kind: type[Event]) -> list[type[Event]]:
        return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]

    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    for kind in subclasses(Event)[1:]:
        assert kind.__name__ == "TaskProgress" or f"| `{kind.__name__}` |" in page, kind
    assert event_data(Event(at_seconds=1.5), 2) == {"event": "Event", "at": 1.5, "part": 2}


def test_the_size_and_the_age_are_bounded(tmp_path: Path) -> None:
    noise = [f"{number:x}" for number in range(2000)]
    limits = Limits(size_bytes=1 << 20, age_seconds=3600.0)
    store = HistoryStore(tmp_path, limits)
    store.save([query_record(1, started=time.time() - 7200)])
    for number in range(100, 400):
        store.save([query_record(number, events=[hash((number, item)) for item in noise])])
        if number % 50 == 0:
            store.prune()
    store.prune()
    store.close()
    assert (tmp_path / FILE).stat().st_size <= limits.size_bytes * 1.1
    reader = HistoryReader(tmp_path)
    kept = [int(summary["query"], 16) for summary in reader.summaries(1000)]
    assert 10 < len(kept) < 300
    # The newest, in order, and not the one that is too old.
    assert kept == sorted(range(400 - len(kept), 400), reverse=True)


def test_lists_are_filtered_and_paged(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    store.save(query_record(number, engine="spark" if number % 3 == 0 else "native") for number in range(30))
    store.save([query_record(99, outcome="running", updated=time.time() - 3600)])
    store.close()
    reader = HistoryReader(tmp_path)
    first = reader.summaries(10)
    assert first[0]["query"] == f"{99:012x}"
    assert first[0]["outcome"] == "lost"
    rest = reader.summaries(100, before=first[-1]["started"])
    assert len(first) + len(rest) == reader.count() == 31
    assert len(reader.summaries(engine="spark")) == 10
    assert [summary["query"] for summary in reader.summaries(search="NUMBER 7")] == [f"{7:012x}"]
    assert reader.summaries(search="' OR 1=1 --") == []
    assert reader.get("0000") is None  # many begin so
    assert reader.get("") is None
    found = reader.get(f"{7:012x}")
    assert found is not None
    assert found["description"] == "query number 7"
    assert HistoryReader(tmp_path / "nothing").summaries() == []


def _write(directory: str, first: int) -> None:
    store = HistoryStore(Path(directory))
    for number in range(first, first + 100):
        store.save([query_record(number)])
        if number % 20 == 0:
            store.prune()
    store.close()


def test_programs_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    programs = [context.Process(target=_write, args=(str(tmp_path), 1000 * number)) for number in range(3)]
    for program in programs:
        program.start()
    for program in programs:
        program.join(120)
    assert [program.exitcode for program in programs] == [0, 0, 0]
    assert HistoryReader(tmp_path).count() == 300
    assert sqlite3.connect(tmp_path / FILE).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ------------------------------------------------------------------------------------------------ the command


def test_the_command(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    hostile = "[red]\x1b[2Jx</b>"
    reasons = [{"reason": "OPERATOR_NOT_SUPPORTED", "what": "Generate", "detail": ""}]
    plan = [{"depth": 0, "name": "Filter", "text": "Filter", "native": False, "reasons": []}]
    store.save(
        [query_record(1), query_record(2, engine="spark", description=hostile, reasons=reasons, plan=plan)]
    )
    store.close()

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            cli, ["history", "--dir", str(tmp_path), *arguments], env={"COLUMNS": "200"}
        )
        assert result.exit_code == 0, result.output
        return result.output

    assert "OPERATOR_NOT_SUPPORTED" in run()
    assert len(json.loads(run("--json", "--engine", "spark"))) == 1
    shown = run(f"{2:012x}")
    assert "[OPERATOR_NOT_SUPPORTED] Generate" in shown
    assert "✗ Filter" in shown
    assert "\x1b[2J" not in shown
    assert "[red]" in shown
    assert json.loads(run(f"{2:012x}", "--json"))["description"] == hostile
    missing = CliRunner().invoke(cli, ["history", "--dir", str(tmp_path), "ffff"])
    assert missing.exit_code == 1
    assert "no query" in missing.output
