# SPDX-License-Identifier: Apache-2.0
"""The seam with PySpark: every action gives what PySpark gives, natively where Volley can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.shown import shown
from volley.errors import ConfigError, FallbackError, SessionError
from volley.support.reasons import Reason
from volley.testing.session import conf

ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "collect": lambda frame: frame.collect(),
    "toArrow": lambda frame: frame.toArrow(),
    "count": lambda frame: frame.count(),
    "take": lambda frame: frame.take(3),
    "head": lambda frame: frame.head(2),
    "head of one": lambda frame: frame.head(),
    "first": lambda frame: frame.first(),
    "tail": lambda frame: frame.tail(3),
    "tail of all": lambda frame: frame.tail(10_000),
    "isEmpty": lambda frame: frame.isEmpty(),
    "toLocalIterator": lambda frame: list(frame.toLocalIterator()),
    "show": lambda frame: shown(frame, 4),
    "show wide": lambda frame: shown(frame, 2, truncate=False),
    "show all": lambda frame: shown(frame, 2**31 - 1),
    "show vertical": lambda frame: shown(frame, 3, truncate=5, vertical=True),
}


@pytest.fixture(scope="module")
def people_path(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small table with each type that PySpark shows in a way of its own."""
    path = str(tmp_path_factory.mktemp("people") / "people")
    rows = """
        select id, cast(id as int) as i, cast(id * 1.5 as decimal(12, 3)) as d, id / 7 as f,
               if(id % 5 = 0, null, concat('name ', id, ' ü')) as s, id % 2 = 0 as b,
               date_add(date'2024-02-27', cast(id as int)) as day,
               timestamp'2024-02-27 01:02:03.456789' + make_interval(0, 0, 0, cast(id as int)) as moment,
               encode(cast(id as string), 'utf-8') as raw
        from range(40)
    """
    with conf(spark_session, {"spark.volley.enabled": "false"}):
        spark_session.sql(rows).repartition(3).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def people_frame(spark_session: SparkSession, people_path: str) -> DataFrame:
    return spark_session.read.parquet(people_path)


@pytest.fixture
def people(spark: SparkSession, people_frame: DataFrame) -> SparkSession:
    people_frame.createOrReplaceTempView("people")
    return spark


def sorted_people(spark: SparkSession) -> DataFrame:
    return spark.table("people").where("id > 2").orderBy("id")


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_answers_as_spark_does(people: SparkSession, action: str) -> None:
    with conf(people, {"spark.volley.enabled": "false"}):
        expected = ACTIONS[action](sorted_people(people))
    assert ACTIONS[action](sorted_people(people)) == expected
    report = volley.last_query(people)
    assert report is not None
    assert (report.engine, report.spark_tasks, report.reasons) == ("native", 0, ())


@pytest.mark.parametrize(
    "action", ["collect", "toArrow", "count", "tail", "isEmpty", "toLocalIterator", "show"]
)
def test_an_action_on_nothing(people: SparkSession, action: str) -> None:
    def nothing() -> DataFrame:
        return people.table("people").where("id < 0")

    with conf(people, {"spark.volley.enabled": "false"}):
        expected = ACTIONS[action](nothing())
    assert ACTIONS[action](nothing()) == expected
    report = volley.last_query(people)
    assert report is not None
    assert report.native


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_to_pandas(people: SparkSession, arrow: str) -> None:
    pandas = pytest.importorskip("pandas")
    with conf(people, {"spark.sql.execution.arrow.pyspark.enabled": arrow}):
        with conf(people, {"spark.volley.enabled": "false"}):
            expected = sorted_people(people).toPandas()
        actual = sorted_people(people).toPandas()
    pandas.testing.assert_frame_equal(actual, expected)
    report = volley.last_query(people)
    assert report is not None
    assert report.native


def test_a_spark_run_counts_its_tasks(people: SparkSession) -> None:
    """The control: the counter that shows 0 for native queries counts when Spark runs one."""
    frame = people.table("people").select(F.input_file_block_start(), "id")
    for action in ("collect", "toLocalIterator"):
        assert len(ACTIONS[action](frame)) == 40
        report = volley.last_query(people)
        assert report is not None
        assert report.action == action
        assert report.engine == "spark"
        assert report.spark_tasks
        assert report.reasons


def test_columns_may_repeat(people: SparkSession) -> None:
    frame = people.table("people").orderBy("id").limit(3)
    twice = frame.select("id", "id", F.col("i").alias("id"))
    with conf(people, {"spark.volley.enabled": "false"}):
        expected = twice.collect()
    assert twice.collect() == expected
    report = volley.last_query(people)
    assert report is not None
    assert report.native


def test_code_and_sql_and_paths(people: SparkSession, people_path: str) -> None:
    from_path = people.read.parquet(people_path)
    by_code = from_path.groupBy("b").agg(F.sum("id").alias("t")).orderBy("b").collect()
    by_sql = people.sql("select b, sum(id) as t from people group by b order by b").collect()
    assert by_code == by_sql
    assert [row.t for row in by_code] == [400, 380]


def test_off_and_on_again(people: SparkSession) -> None:
    people.table("people").count()
    before = volley.last_query(people)
    volley.disable(people)
    assert people.table("people").count() == 40
    off = volley.last_query(people)
    assert off is not None
    assert (off.engine, off.action, [item.reason for item in off.reasons]) == (
        "spark",
        "count",
        [Reason.DISABLED],
    )
    # It is as if Volley were not there: no tag on Spark's jobs, so their tasks are not counted.
    assert off.spark_tasks is None
    volley.enable(people)
    volley.enable(people)
    people.table("people").count()
    assert volley.last_query(people) is not before


def test_two_sessions_in_one_process(people: SparkSession, people_path: str) -> None:
    other = people.newSession()
    volley.enable(other)
    other.conf.set("spark.volley.local.workers", "2")
    other.read.parquet(people_path).createOrReplaceTempView("people")
    mine = people.sql("select max(id) as m from people").collect()
    theirs = other.sql("select min(id) as m from people").collect()
    assert (mine[0].m, theirs[0].m) == (39, 0)
    first, second = volley.last_query(people), volley.last_query(other)
    assert first is not None
    assert second is not None
    assert first.query != second.query
    volley.disable(other)
    assert people.sql("select 1 + id as x from people where id = 1").collect()[0].x == 2
    assert volley.last_query(people) is not first


def test_several_threads_at_once(people: SparkSession) -> None:
    together = threading.Barrier(4)

    def ask(number: int) -> tuple[int, str]:
        together.wait(timeout=60)
        total = people.sql(f"select sum(id) as t from people where id % 4 = {number}").collect()[0].t
        report = volley.last_query(people)
        assert report is not None
        return total, report.engine

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert answers == [(sum(range(number, 40, 4)), "native") for number in range(4)]


@pytest.mark.since("4.1")
@pytest.mark.parametrize("as_bytes", ["true", "false"])
def test_binary_values_have_the_type_that_the_session_wants(spark: SparkSession, as_bytes: str) -> None:
    spark.conf.set("spark.sql.execution.pyspark.binaryAsBytes", as_bytes)
    frame = spark.sql("select X'00ff' as raw, array(X'01') as list")
    native, report = frame.collect(), volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"
    volley.disable(spark)
    assert [type(native[0].raw), type(native[0].list[0])] == [bytes if as_bytes == "true" else bytearray] * 2
    assert native == frame.collect()


def test_what_is_no_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SessionError, match="is not a SparkSession"):
        volley.enable("spark")  # type: ignore[arg-type]


def test_options_are_checked(spark: SparkSession) -> None:
    with (
        conf(spark, {"spark.volley.local.workers": "many"}),
        pytest.raises(ConfigError, match=r"local\.workers"),
    ):
        spark.range(3).collect()
    with conf(spark, {"spark.volley.fallbak": "allow"}), pytest.raises(ConfigError, match="fallbak"):
        spark.range(3).collect()


def test_fallback_policies(spark: SparkSession) -> None:
    def unsupported() -> DataFrame:
        return spark.range(3).select(F.input_file_block_start().alias("m"))

    assert len(unsupported().collect()) == 3
    with (
        conf(spark, {"spark.volley.fallback": "warn"}),
        pytest.warns(UserWarning, match="InputFileBlockStart"),
    ):
        unsupported().collect()
    with (
        conf(spark, {"spark.volley.fallback": "error"}),
        pytest.raises(FallbackError, match="InputFileBlockStart"),
    ):
        unsupported().collect()


def test_commands_still_run(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("create or replace temp view v as select 1 as x")
    assert "v" in {row.tableName for row in spark.sql("show tables").collect() if row.isTemporary}
    spark.sql(f"create table t_volley (x int) using parquet location '{tmp_path / 't'}'")
    try:
        spark.sql("insert into t_volley values (1), (2)")
        assert spark.table("t_volley").count() == 2
    finally:
        spark.sql("drop table t_volley")


def test_foreach_passes_to_spark(spark: SparkSession) -> None:
    seen = spark.sparkContext.accumulator(0)
    spark.range(4).foreach(lambda row: seen.add(row.id))
    assert seen.value == 6


def test_an_abandoned_iterator_stops_the_query(people: SparkSession) -> None:
    rows = people.table("people").toLocalIterator()
    next(rows)
    assert isinstance(rows, Generator)
    rows.close()
    assert volley.cancel(people) == 0
