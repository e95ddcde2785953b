# SPDX-License-Identifier: Apache-2.0
"""Every action that Volley sees is reported, however it ends: `last_query` is never about an older one."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.sampling import every
from volley.errors import ConfigError, DeadlineExceeded, FallbackError, QueryCancelled
from volley.observe.report import QueryReport
from volley.observe.spark_tasks import SparkTasks
from volley.query import session_state
from volley.support.reasons import Reason
from volley.testing.session import conf

# Far longer than any test: only a cancellation or a deadline ends it.
ENDLESS = "select count(*) from range(1000000000000) where (id * 3) % 7 = 3"
ERROR = {"spark.volley.fallback": "error"}


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def code_of(report: QueryReport) -> str:
    assert report.error is not None
    assert str(report.error).splitlines()[0] in str(report)
    return report.error.code


@pytest.fixture
def replaced(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A table whose file has changed since Spark planned: Spark reads it, the native side refuses to."""
    path = tmp_path / "replaced.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    frame = spark.read.parquet(str(path))
    pq.write_table(pa.table({"a": list(range(100))}), path)
    return frame


# ------------------------------------------------------------------------------------------------ ends


def test_an_answer(spark: SparkSession) -> None:
    spark.range(3).collect()
    report = report_of(spark)
    assert (report.outcome, report.error, report.engine) == ("answered", None, "native")


@pytest.mark.parametrize("action", ["collect", "take", "toArrow", "toPandas"])
def test_the_rows_of_an_answer_of_spark(spark: SparkSession, action: str) -> None:
    """toArrow and toPandas are given batches of rows."""
    frame = spark.range(0, 7, 1, 2).selectExpr("input_file_block_start()", "id")
    getattr(frame, action)(*([7] if action == "take" else []))
    assert (report_of(spark).engine, report_of(spark).rows) == ("spark", 7)


def test_a_data_error(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.sql("select 1 / (id - 1) as x from range(3)").collect()
    report = report_of(spark)
    assert (report.action, report.outcome, report.engine) == ("collect", "failed", "spark")
    assert code_of(report) == "DIVIDE_BY_ZERO"
    assert report.reasons[0].reason == Reason.REPLAY
    assert report.to_dict()["error"]["code"] == "DIVIDE_BY_ZERO"


def test_an_error_of_planning(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        spark.range(3).write.format("no.such.format").save("/nowhere")
    report = report_of(spark)
    assert (report.action, report.outcome, code_of(report)) == ("save", "failed", "DATA_SOURCE_NOT_FOUND")


def test_a_deadline(spark: SparkSession) -> None:
    with conf(spark, {"spark.volley.timeoutSeconds": "0.2"}), pytest.raises(DeadlineExceeded):
        spark.sql(ENDLESS).collect()
    report = report_of(spark)
    assert (report.outcome, report.engine, report.spark_tasks) == ("failed", "native", 0)
    assert code_of(report) == "DEADLINE_EXCEEDED"
    assert str(report).startswith("collect: native, failed after ")


def test_a_cancelled_query(spark: SparkSession) -> None:
    reports: list[QueryReport] = []

    def collect() -> None:
        with pytest.raises(QueryCancelled):
            spark.sql(ENDLESS).collect()
        reports.append(report_of(spark))

    thread = threading.Thread(target=collect)
    thread.start()
    while not session_state.running(spark):
        thread.join(0.01)
        assert thread.is_alive()
    volley.cancel(spark)
    thread.join(60)
    (report,) = reports
    assert (report.outcome, report.engine, code_of(report)) == ("cancelled", "native", "QUERY_CANCELLED")


def test_a_bad_option(spark: SparkSession) -> None:
    with conf(spark, {"spark.volley.local.workers": "many"}), pytest.raises(ConfigError):
        spark.range(3).count()
    report = report_of(spark)
    assert (report.action, report.outcome, code_of(report)) == ("count", "failed", "INVALID_OPTION")


def test_rows_that_are_not_read_to_the_end(spark: SparkSession) -> None:
    rows = spark.range(100).toLocalIterator()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    report = report_of(spark)
    assert (report.action, report.outcome, report.engine) == ("toLocalIterator", "cancelled", "native")
    unread = spark.range(100).toLocalIterator()
    spark.range(100).toLocalIterator()
    assert report_of(spark) is not report
    later = report_of(spark)
    spark.range(3).count()
    del unread
    # It began before the count, which is the last thing that the session did.
    assert report_of(spark).action == "count"
    assert later.action == "toLocalIterator"


def test_a_failure_between_rows(spark: SparkSession) -> None:
    rows = spark.sql("select 1 / (id - 2) as x from range(5)").select(F.input_file_block_start(), "x")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        list(rows.toLocalIterator())
    assert (report_of(spark).action, report_of(spark).outcome) == ("toLocalIterator", "failed")


# ------------------------------------------------------------------------------------------------ Spark's actions


def v2_table(frame: DataFrame, path: Path) -> Any:
    return frame.writeTo("volley_v2").using("parquet").create()


def with_local_time(frame: DataFrame) -> DataFrame:
    """Only Spark writes local times as text."""
    return frame.withColumn("local", F.timestamp_seconds("id").cast("timestamp_ntz"))


PASSED_ON: dict[str, Callable[[DataFrame, Path], Any]] = {
    "foreach": lambda frame, path: frame.foreach(lambda row: None),
    "foreachPartition": lambda frame, path: frame.foreachPartition(lambda rows: None),
    "rdd": lambda frame, path: frame.rdd.map(lambda row: row.id).collect(),
    "toJSON": lambda frame, path: frame.toJSON(),
    "corr": lambda frame, path: frame.corr("id", "twice"),
    "cov": lambda frame, path: frame.stat.cov("id", "twice"),
    "crosstab": lambda frame, path: frame.crosstab("id", "twice"),
    "approxQuantile": lambda frame, path: frame.approxQuantile("id", [0.5], 0.0),
    "localCheckpoint": lambda frame, path: frame.localCheckpoint(),
    "csv": lambda frame, path: with_local_time(frame).write.csv(str(path), sep="|"),
    "json": lambda frame, path: with_local_time(frame).write.json(str(path)),
    "orc": lambda frame, path: frame.select(F.struct("id")).write.orc(str(path)),
    "text": lambda frame, path: frame.select(frame.id.cast("string")).write.text(str(path)),
    "xml": lambda frame, path: frame.write.xml(str(path), rowTag="row"),
    "jdbc": lambda frame, path: frame.write.jdbc(f"jdbc:no:{path}", "t"),
    "create": v2_table,
}
NO_DRIVER = {"jdbc"}


@pytest.mark.parametrize("action", every(2, PASSED_ON))
def test_what_only_spark_does_is_seen(spark: SparkSession, tmp_path: Path, action: str) -> None:
    frame = spark.range(6).withColumn("twice", F.col("id") * 2)
    path = tmp_path / "out"
    perform = PASSED_ON[action]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, of toJSON
        with conf(spark, ERROR), pytest.raises(FallbackError, match=action), SparkTasks(spark) as tasks:
            perform(frame, path)
        assert not path.exists()
        assert tasks.count == 0
        refused = report_of(spark)
        assert (refused.action, refused.outcome, code_of(refused)) == (action, "failed", "NOT_NATIVE")
        if action in NO_DRIVER:
            with pytest.raises(Exception, match="jdbc"):
                perform(frame, path)
            assert report_of(spark).outcome == "failed"
        else:
            perform(frame, path)
            assert report_of(spark).outcome == "answered"
    report = report_of(spark)
    assert (report.action, report.engine) == (action, "spark")
    assert report.reasons
    if action == "create":
        spark.sql("drop table volley_v2")
    if action == "csv":
        assert spark.read.csv(str(path), sep="|").count() == 6
        assert sorted(row[0] for row in spark.read.text(str(path)).collect())[0] == "0|0|0.0"


def test_an_rdd_is_kept_with_its_frame(spark: SparkSession) -> None:
    frame = spark.range(3)
    assert frame.rdd is frame.rdd


def test_what_runs_nothing_is_no_action(spark: SparkSession) -> None:
    spark.range(3).count()
    before = report_of(spark)
    with conf(spark, ERROR):
        repr(spark.range(3))
        spark.sql("select 1 as x")
        spark.range(3).localCheckpoint(eager=False)
    assert report_of(spark) is before


def test_a_frame_that_a_notebook_shows(spark: SparkSession) -> None:
    eager = {"spark.sql.repl.eagerEval.enabled": "true", "spark.sql.repl.eagerEval.maxNumRows": "2"}
    for show in (repr, lambda frame: frame._repr_html_()):
        with conf(spark, {**eager, "spark.volley.enabled": "false"}):
            expected = show(spark.range(5))
        with conf(spark, eager):
            assert show(spark.range(5)) == expected
        report = report_of(spark)
        assert (report.action, report.engine, report.spark_tasks) == ("show", "native", 0)


def test_arrays_of_an_empty_result_are_shown(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    spark.range(3).selectExpr("id", "array(id) a", "map(id, array(id)) m").where("id > 7").show()
    assert report_of(spark).engine == "native"
    assert capsys.readouterr().out.startswith("+---+---+---+\n| id|  a|  m|\n")


# ------------------------------------------------------------------------------------------------ fallback=error


def test_spark_does_not_run_what_it_may_not_answer(spark: SparkSession, replaced: DataFrame) -> None:
    assert len(replaced.collect()) == 100
    assert report_of(spark).reasons[0].reason == Reason.REPLAY
    with conf(spark, ERROR), SparkTasks(spark) as tasks, pytest.raises(FallbackError, match="changed"):
        replaced.collect()
    assert tasks.count == 0
    report = report_of(spark)
    assert (report.engine, report.outcome, code_of(report)) == ("native", "failed", "NOT_NATIVE")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_spark_does_not_write_what_it_may_not(
    spark: SparkSession, tmp_path: Path, replaced: DataFrame, mode: str
) -> None:
    """The write was once performed by Spark and then reported as failed: a retry would have doubled the rows."""
    path = tmp_path / "table"
    spark.range(7).withColumnRenamed("id", "a").write.parquet(str(path))
    before = sorted(path.rglob("*"))
    with conf(spark, ERROR), SparkTasks(spark) as tasks, pytest.raises(FallbackError, match="changed"):
        replaced.write.mode(mode).parquet(str(path))
    assert tasks.count == 0
    assert sorted(path.rglob("*")) == before
    assert (report_of(spark).action, report_of(spark).outcome) == ("parquet", "failed")
    # Allowed, it is Spark's.
    replaced.write.mode("append").parquet(str(path))
    assert report_of(spark).engine == "spark"
    assert spark.read.parquet(str(path)).count() == 107


# ------------------------------------------------------------------------------------------------ warnings


def test_a_warning_points_at_the_line_that_asked(spark: SparkSession) -> None:
    def ask(frame: DataFrame) -> None:
        frame.collect()

    frame = spark.range(3).select(F.input_file_block_start().alias("m"))
    with conf(spark, {"spark.volley.fallback": "warn"}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        ask(frame)
        ask(frame)  # the same place
        frame.collect()  # another one
        frame.toPandas()  # through PySpark's own code
        frame.foreach(lambda row: None)
        list(frame.toLocalIterator())
    ours = [warning for warning in caught if "Spark runs this" in str(warning.message)]
    assert {warning.filename for warning in ours} == {__file__}
    assert len({warning.lineno for warning in ours}) == len(ours) == 5


class TestDefects:
    """What nobody expected costs time and a warning, never the query."""

    def test_in_a_native_run(self, spark: SparkSession) -> None:
        # PySpark's conversion of rows has one name for two of these fields.
        text = "select named_struct('a', id, 'a', id + 1, 'a_0', id + 2) s from range(3)"
        with pytest.warns(UserWarning, match="Volley failed and Spark runs the query: .*ValueError"):
            rows = spark.sql(text).collect()
        assert [tuple(row.s) for row in rows] == [(0, 1, 2), (1, 2, 3), (2, 3, 4)]
        assert report_of(spark).engine == "spark"
        assert [reason.reason for reason in report_of(spark).reasons] == [Reason.FAILED]

    def test_in_planning(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> NoReturn:
            raise KeyError("a defect")

        monkeypatch.setattr("volley.decide.aggregate_whole_partitions", fail)
        assert spark.sql("select sum(id) s from range(77)").collect()[0].s == 2926
        assert report_of(spark).engine == "spark"
        assert [str(reason) for reason in report_of(spark).reasons] == [
            "[NATIVE_RUN_FAILED] collect: KeyError: 'a defect'"
        ]
        assert "Volley failed to plan a query" in caplog.text
