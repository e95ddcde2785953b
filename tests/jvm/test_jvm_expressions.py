# SPDX-License-Identifier: Apache-2.0
"""Expressions without a native form: Spark's own code evaluates them inside native plans."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from helpers.waiting import eventually
from volley.jvm.programs import Programs, evaluate
from volley.plan.capture import Origins, capture
from volley.plan.expressions import Call, Expression, walk
from volley.plan.nodes import Project
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

_ROWS = 300


def _every(step: int, value: object, row: int) -> object:
    return None if row % step == 0 else value


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A column of every type that native plans carry."""
    begin = datetime(1899, 12, 31, 23, 30, 0, 123, tzinfo=timezone.utc)
    times = [begin + timedelta(hours=7321 * row) for row in range(_ROWS)]
    # Both changes of the clock in 2024, minute by minute around them in New York.
    times[:60] = [
        datetime(2024, 3, 10, 6, 30, tzinfo=timezone.utc) + timedelta(minutes=2 * row) for row in range(60)
    ]
    times[60:120] = [
        datetime(2024, 11, 3, 4, 30, tzinfo=timezone.utc) + timedelta(minutes=3 * row) for row in range(60)
    ]
    rows = range(_ROWS)
    columns = {
        "k": pa.array([_every(11, row % 100, row) for row in rows], pa.int32()),
        "l": pa.array([_every(7, (row - 150) * 2**40, row) for row in rows], pa.int64()),
        "x": pa.array([_every(5, (row - 99) / 7, row) for row in rows], pa.float64()),
        "b": pa.array([_every(9, row % 3 == 0, row) for row in rows], pa.bool_()),
        "d": pa.array([_every(13, Decimal(row) / 8, row) for row in rows], pa.decimal128(20, 4)),
        "s": pa.array([_every(6, f"wör{row % 37},x{row % 5}", row) for row in rows]),
        "y": pa.array([_every(8, bytes([row % 256, 1]), row) for row in rows], pa.binary()),
        "day": pa.array([_every(10, date(1950, 1, 1) + timedelta(days=97 * row), row) for row in rows]),
        "t": pa.array([_every(12, time, row) for row, time in enumerate(times)], pa.timestamp("us", "UTC")),
        "a": pa.array([_every(4, [row, None, row % 3], row) for row in rows], pa.list_(pa.int32())),
        "p": pa.array(
            [_every(3, {"u": row, "v": _every(2, "q", row)}, row) for row in rows],
            pa.struct([("u", pa.int32()), ("v", pa.string())]),
        ),
    }
    path = str(tmp_path_factory.mktemp("jvm") / "t.parquet")
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def table(spark: SparkSession, parquet: str) -> SparkSession:
    """The view `t` over it."""
    spark.read.parquet(parquet).createOrReplaceTempView("t")
    return spark


# ------------------------------------------------------------------------------------------------ places in a plan

_PLACES = [
    "select k, levenshtein(s, 'wör1') + 1 from t where format_string('%s!', s) like 'wör1%'",
    "select split(s, ',')[1] g, count(*), max(date_format(t, 'E')), count(distinct soundex(s)) "
    "filter (where format_number(x, 2) like '%.%') from t group by 1 order by 1",
    "select a.k, b.s from t a join t b on date_format(a.t, 'yyyyMM') = date_format(b.t, 'yyyyMM') "
    "and levenshtein(a.s, b.s) < 2",
    "select a.k from t a left anti join t b on format_string('%.4s', a.s) = format_string('%.4s', b.s) and b.k > 90",
    "select k, row_number() over (partition by date_format(t, 'MM') order by format_string('%.4s', s), k, l, s, t), "
    "max(levenshtein(s, 'q')) over (partition by k % 3 order by l, s, t rows 2 preceding) from t",
    "select k from t where k + (select max(length(date_format(t, 'EEEE'))) from t) "
    "> levenshtein(s, (select max(s) from t))",
    "select k, s from t order by format_string('%05d', k % 7), l, s, k limit 20",
    "select date_format(t, 'y'), k % 2, count(*) from t group by rollup(date_format(t, 'y'), k % 2)",
    "select concat(date_format(t, 'E'), '-', date_format(day, 'E')) from t union all select soundex(s) from t",
]


@pytest.mark.parametrize("query", _PLACES)
def test_the_jvm_evaluates_expressions_of_every_operator(table: SparkSession, query: str) -> None:
    assert_same_rows(table, query)


def test_constants_that_differ_in_the_sign_of_zero_are_two(table: SparkSession) -> None:
    assert_same_rows(table, "select greatest(x, 0.0D), greatest(x, -0.0D) from t", tolerance=0.0)


def test_several_tasks_evaluate_at_once(table: SparkSession, distributed: SparkSession) -> None:
    with conf(table, {"spark.volley.local.workers": "3"}):
        assert_same_rows(table, _PLACES[1])
        assert_same_rows(table, _PLACES[2])


def test_queries_of_several_threads_share_the_jvm(table: SparkSession) -> None:
    expected = table.sql(_PLACES[1]).collect()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: table.sql(_PLACES[1]).collect(), range(8)))
    assert all(rows == expected for rows in found)


def test_rows_are_streamed_and_written(table: SparkSession, tmp_path: Path) -> None:
    frame = table.sql("select k, s, date_format(t, 'yyyy') y, format_string('%s-%d', s, k) f from t")
    assert sorted(map(str, frame.toLocalIterator())) == sorted(map(str, frame.collect()))
    frame.write.partitionBy("y").parquet(str(tmp_path / "written"))
    assert _report(table).engine == "native"
    written = table.read.parquet(str(tmp_path / "written")).select(*frame.columns)
    with conf(table, {"spark.volley.enabled": "false"}):
        assert sorted(map(str, written.collect())) == sorted(
            str(row).replace(f"y='{row.y}'", f"y={row.y}") for row in frame.collect()
        )


# -------------------------------------------------------------------------------------------------- values and types

_VALUES = {
    "every type": "select named_struct('k', k, 'l', l, 'x', x, 'b', b, 'd', d, 's', s, 'y', y, 'day', day, 't', t, "
    "'a', a, 'p', p, 'n', cast(t as timestamp_ntz), 'sh', cast(k as smallint), 'f', cast(x as float), 'z', null, "
    "'w', soundex(s)) from t",
    "values of each type": "select shiftleft(k, 2) % 7, bround(l, -3), tanh(x), exists(array(b, k > 3), e -> e), "
    "bround(d, 2), "
    "initcap(s), substring(cast(reverse(s) as binary), 2, 3), add_months(day, k), t + make_interval(0, k), "
    "transform(a, e -> e + 1), from_json(to_json(p), 'u int, v string'), cast(day as timestamp_ntz) from t",
    "types inside": "select size(map_keys(map(coalesce(k, 0), s))), map(coalesce(k, 0), s)[7], "
    "extract(minute from t - timestamp'2024-01-01 00:00:00'), cast(make_interval(0, k) as string), "
    "parse_json('[1, 2]')::string, to_json(map(coalesce(s, ''), a)) from t",
    "text": "select cast(x as string), cast(t as string), cast(a as string), cast(p as string), "
    "try_cast(s as timestamp), cast(cast(day as string) as timestamp), cast(d as string), "
    "split(s, 'r(?=[0-9])'), regexp_replace(s, '(\\\\d)(?<x>,)', '$2$1'), s rlike '(?i)WÖR[0-9]+?' from t",
    "collations": "select collate(s, 'UNICODE_CI') = 'WÖR1,X1', contains(s collate utf8_lcase, 'X1') from t",
    "lambdas": "select transform(a, e -> transform(a, (f, i) -> e + f * i)), "
    "filter(a, e -> format_string('%d', e) > '2'), aggregate(a, k, (s, e) -> s + coalesce(e, k)), "
    "array_sort(a, (l, r) -> coalesce(r - l, 0)) from t",
    "no column": "select k, cast(make_interval(1, 2) as string), array_sort(array(3, 1)) from t",
}


# Spark 4.0 names a collation by an expression that cannot be evaluated.
_SINCE = {"collations": pytest.mark.since("4.1"), "types inside": pytest.mark.since("4.0")}


@pytest.mark.parametrize(
    "query", [pytest.param(text, id=name, marks=_SINCE.get(name, ())) for name, text in _VALUES.items()]
)
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_values_of_every_type_cross_unchanged(table: SparkSession, query: str, ansi: str) -> None:
    folding = "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"
    with conf(table, {"spark.sql.ansi.enabled": ansi, "spark.sql.optimizer.excludedRules": folding}):
        assert_same_rows(table, query)


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "+05:30"])
def test_a_session_may_be_in_any_time_zone(table: SparkSession, zone: str) -> None:
    query = (
        "select hour(t), cast(t as date), cast(day as timestamp), date_trunc('hour', t), date_format(t, 'HH:mm zzz'),"
        " cast(t as timestamp_ntz), to_unix_timestamp(cast(t as string), 'yyyy-MM-dd HH:mm:ss[.SSSSSS]'),"
        " t + interval 1 day, t > '2024-03-10 03:00',"
        " from_utc_timestamp(t, 'Asia/Tokyo'), date_add(t, 1), cast(l as timestamp), k from t where t < now()"
    )
    with conf(table, {"spark.sql.session.timeZone": zone}):
        assert_same_rows(table, query)
        assert_same_rows(table, "select cast(t as date) d, count(*), min(t) from t group by 1 order by 1")


def test_text_that_is_not_utf_8_does_not_enter_the_native_engine(table: SparkSession) -> None:
    assert_same_rows(
        table, "select length(regexp_replace(cast(y as string), '^(?=.).', 'é', 1)) from t where k < 50"
    )
    assert_same_rows(table, "select hex(cast(y as string)) from t", native=False)
    assert [reason.reason for reason in _report(table).reasons] == [Reason.REPLAY]


_TEXTS = """('12'), (' 7 '), ('1.5'), ('abc'), (''), (null), ('2020-02-29'), ('2021-02-29'), ('2020-1-5'), ('2020'),
('99999'), ('9223372036854775808'), ('true'), ('T'), ('-0'), ('1e3'), ('NaN'), ('+4'), ('0.005'),
('1999-12-31'), ('1d')"""


@pytest.mark.parametrize("target", ["tinyint", "int", "bigint", "double", "decimal(5, 2)", "date", "boolean"])
def test_text_without_a_plain_form_is_cast_by_the_jvm(spark: SparkSession, target: str) -> None:
    texts = f"(select s from values {_TEXTS} as v(s) union all select cast(id as string) from range(3))"
    assert_same_rows(spark, f"select s, try_cast(s as {target}) v from {texts}")
    with conf(spark, {"spark.sql.ansi.enabled": "false"}):
        assert_same_rows(spark, f"select s, cast(s as {target}) v from {texts}")
        assert_same_rows(spark, f"select s from {texts} where cast(s as {target}) is not null")


# -------------------------------------------------------------------------------------------------- guards and errors


@pytest.mark.parametrize(
    "query",
    [
        "select k, case when k <> 50 then 1000 div (k - 50) + levenshtein(s, 'a') end from t",
        "select k, case when s is null then 'none' when length(s) > 900 then raise_error(s) else soundex(s) end from t",
        "select k from t where k <> 50 and 1000 div (k - 50) + levenshtein(s, 'a') > 2",
        "select k from t where k is null or k = 50 or 1000 div (k - 50) > levenshtein(s, 'a')",
        "select coalesce(k, to_number('7', '9'), 1 div (k - k)), if(k > 5, 0, bround(100 div (k - 50), -1)) from t",
        "select t.k from t join (select k from t where k <> 50) u on t.k = u.k and bround(9 div (u.k - 50), -1) < 9",
    ],
)
def test_an_expression_that_may_raise_is_guarded_as_in_spark(table: SparkSession, query: str) -> None:
    """A branch that is evaluated for the wrong rows would raise, and Spark would run the query again."""
    assert_same_rows(table, query)


@pytest.mark.since("4.0")
def test_an_error_is_that_of_spark(table: SparkSession) -> None:
    with pytest.raises(PySparkException) as raised:
        table.sql("select to_number(s, '999') from t").collect()
    with conf(table, {"spark.volley.enabled": "false"}), pytest.raises(PySparkException) as expected:
        table.sql("select to_number(s, '999') from t").collect()
    assert raised.value.getCondition() == expected.value.getCondition()
    # The connection that reported it goes on.
    assert_same_rows(table, "select soundex(s) from t")


# ---------------------------------------------------------------------------------------- functions of users, refusals


def test_a_function_of_a_jvm_user_is_evaluated(table: SparkSession) -> None:
    functions = table._jvm.org.apache.spark.ml.functions  # type: ignore[union-attr]

    def query(spark: SparkSession) -> DataFrame:
        array = F.transform("a", lambda element: element.cast("double"))
        filled = F.transform(F.coalesce(array, F.array()), lambda element: F.coalesce(element, F.lit(0.0)))
        vector = functions.array_to_vector(filled._jc)
        return spark.table("t").select(Column(functions.vector_to_array(vector, "float64")).alias("v"))

    assert_same_rows(table, query)


@pytest.mark.parametrize(
    "expression",
    [
        "shuffle(array(1, 2))[0] + k",
        "concat(s, uuid())",
        "k + monotonically_increasing_id()",
        "input_file_block_start() + k",
    ],
)
def test_what_needs_a_task_of_spark_is_left_to_it(table: SparkSession, expression: str) -> None:
    frame = table.sql(f"select {expression} from t")
    assert not volley.explain(frame).native
    assert frame.count() == _ROWS


def test_it_can_be_turned_off(table: SparkSession) -> None:
    frame = table.sql("select format_string('%s', s), date_format(t, 'y') from t")
    with conf(table, {"spark.volley.jvmExpressions": "off"}):
        explained = volley.explain(frame)
    assert not explained.native
    assert {reason.what for reason in explained.reasons} >= {"FormatString", "DateFormatClass"}


@pytest.mark.embedded
def test_workers_that_do_not_answer_have_no_jvm(table: SparkSession) -> None:
    frame = table.sql("select date_format(t, 'y') from t")
    with conf(table, {"spark.volley.transport": "flight", "spark.volley.workers": "127.0.0.1:1"}):
        explained = volley.explain(frame)
    assert [reason.reason for reason in explained.reasons][:2] == [Reason.ARGUMENT_VALUE, Reason.NO_JVM]


# -------------------------------------------------------------------------------------------- what the user is told


def test_explain_names_what_the_jvm_evaluates(table: SparkSession) -> None:
    explained = volley.explain(
        table.sql("select format_string('%s', s), k + 1 from t where date_format(t, 'y') > '2000'")
    )
    assert explained.native
    lines = [line.strip() for line in str(explained).splitlines() if "JVM" in line]
    assert lines == [
        "by Spark's own code in the JVM: format_string (FormatString)",
        "by Spark's own code in the JVM: date_format (DateFormatClass)",
    ]


def test_the_report_counts_rows_and_seconds(table: SparkSession) -> None:
    table.sql("select mask(s) from t").collect()
    report = _report(table)
    assert report.engine == "native"
    assert report.jvm_rows == _ROWS
    assert 0 < report.jvm_seconds < report.seconds
    assert f"{_ROWS} rows in the JVM" in str(report)
    table.sql("select upper(s) from t").collect()
    assert _report(table).jvm_rows == 0


@pytest.mark.embedded
def test_equal_expressions_are_one_program_and_end_with_their_query(spark: SparkSession) -> None:
    text = "select format_string('%d', id), format_string('%d', id) || '!' from range(3)"
    with conf(spark, {"spark.volley.enabled": "false"}):
        origins = Origins()
        plan = capture(
            spark.sparkContext._gateway, spark.sql(text)._jdf.queryExecution().executedPlan(), origins
        )
    assert isinstance(plan, Project)
    first, second = (next(filter(_is_format, walk(expression))) for expression in plan.expressions)
    assert first is not second
    programs = Programs(spark, origins)
    found = programs.prepare(first, first.arguments[1:])
    assert isinstance(found, tuple)
    assert programs.prepare(second, second.arguments[1:]) == found
    number = dict(found)["program"]
    assert isinstance(number, int)
    assert evaluate(number, [pa.array([7, -8], pa.int64())]).to_pylist() == ["7", "-8"]
    del programs
    gc.collect()
    with pytest.raises(LookupError):
        evaluate(number, [pa.array([1], pa.int64())])


def _is_format(part: Expression) -> TypeGuard[Call]:
    return isinstance(part, Call) and part.function == "FormatString"


@pytest.mark.embedded
def test_programs_that_have_ended_leave_the_jvm(table: SparkSession) -> None:
    allocator = table._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()  # type: ignore[union-attr]
    # Spark itself allocates from it, too, for what other tests have left open.
    before = allocator.getAllocatedMemory()
    table.sql("select mask(s) from t").collect()
    eventually(lambda: allocator.getAllocatedMemory() <= before)


def _report(spark: SparkSession) -> volley.QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report
