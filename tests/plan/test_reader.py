# SPDX-License-Identifier: Apache-2.0
"""Reading plans in the JVM: any text comes through, no plan is too large to refuse, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import volley
from helpers.captured import parts, plan_of
from volley.errors import CaptureError, FallbackError
from volley.plan import nodes, reader
from volley.plan.capture import capture
from volley.plan.expressions import Call, Literal
from volley.plan.expressions import walk as walk_expression
from volley.plan.nodes import FileScan, Node, Project, Range
from volley.plan.types import STRING, OpaqueType
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

# What separates, quotes, escapes or ends a text in JSON, in py4j's lines or in C, and what has two forms of encoding.
HOSTILE = [
    "",
    '"',
    "\\",
    "\\u0041",
    '\\"',
    "\n",
    "\r\n",
    "\t",
    "\x7f",
    "null",
    "]}",
    "é",
    "e\u0301",
    "\u2028",
    "\ufeff",
    "\uffff",
    "😀",
    "".join(map(chr, range(1, 32))),
]


def literals(plan: Node) -> list[Any]:
    return [part.value for part in parts(plan) if isinstance(part, Literal)]


@pytest.fixture(scope="module")
def numbers_frame(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = tmp_path_factory.mktemp("numbers") / "numbers.parquet"
    pq.write_table(pa.table({"a": pa.array(range(10), pa.int64()), "s": [str(n) for n in range(10)]}), path)
    return spark_session.read.parquet(str(path))


@pytest.fixture
def numbers(spark: SparkSession, numbers_frame: DataFrame) -> DataFrame:
    numbers_frame.createOrReplaceTempView("numbers")
    return numbers_frame


def check_texts(numbers: DataFrame, texts: list[str]) -> None:
    """Each as a literal, as a name, and in a long IN list."""
    listed = {*texts, *map(str, range(11))}
    columns = [F.lit(text).alias(f"{text}{number}") for number, text in enumerate(texts)]
    plan = plan_of(numbers.where(F.col("s").isin(*listed)).select("a", *columns))
    assert isinstance(plan, Project)
    assert [column.name for column in plan.output[1:]] == [f"{text}{n}" for n, text in enumerate(texts)]
    assert [
        part.value
        for column in plan.expressions
        for part in walk_expression(column)
        if isinstance(part, Literal)
    ] == texts
    (condition,) = [part for part in parts(plan.child) if isinstance(part, Call) and part.function == "In"][
        :1
    ]
    assert {item.value for item in condition.arguments[1:] if isinstance(item, Literal)} == listed


def test_hostile_texts(numbers: DataFrame) -> None:
    check_texts(numbers, HOSTILE)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8))
def test_any_text(numbers: DataFrame, texts: list[str]) -> None:
    check_texts(numbers, texts)


def test_a_name_that_is_no_unicode(spark: SparkSession, tmp_path: Path) -> None:
    """Java's strings may hold half of a pair; py4j's encoding would make a question mark of it."""
    schema = StructType([StructField("\ud800", LongType()), StructField("x\udc00y", LongType())])
    plan = plan_of(spark.read.schema(schema).parquet(str(tmp_path)))
    assert [column.name for column in plan.output] == ["\ud800", "x\udc00y"]


def test_a_literal_that_is_no_text(numbers: DataFrame, spark: SparkSession) -> None:
    """Spark's strings may hold any bytes; Java would make U+FFFD of these."""
    frame = spark.sql("select a, cast(X'ff41' as string) as broken from numbers")
    (broken,) = [part for part in parts(plan_of(frame)) if isinstance(part, Call)]
    assert (broken.function, broken.type) == ("Literal", STRING)
    assert_same_rows(spark, "select a, hex(cast(X'ff41' as string)) as broken from numbers")


def test_the_escape_of_a_like(numbers: DataFrame, spark: SparkSession) -> None:
    for escape in ('"', "é", "\u2028"):
        plan = plan_of(spark.sql(f"select s like '%{escape}_' escape '{escape}' as x from numbers"))
        found = [part for part in parts(plan) if isinstance(part, Call) and part.function == "Like"]
        assert [call.option("escapeChar") for call in found] == [escape]


def test_an_in_list_with_null(numbers: DataFrame, spark: SparkSession) -> None:
    listed = ", ".join(f"'{number}'" for number in range(5, 25))
    sql = f"select a, s in ({listed}, null) as x, s in ({listed}, 'null') as y from numbers"
    found = [
        part for part in parts(plan_of(spark.sql(sql))) if isinstance(part, Call) and part.function == "In"
    ]
    values = [{item.value for item in call.arguments[1:] if isinstance(item, Literal)} for call in found]
    assert [None in each for each in values] == [True, False]
    assert ["null" in each for each in values] == [False, True]
    assert_same_rows(spark, sql)


def test_a_partition_named_null_is_not_null(spark: SparkSession, tmp_path: Path) -> None:
    tags = ["null", None, "", 'a"b', "é/ü", "__HIVE__"]
    target = str(tmp_path / "by tag")
    rows = [(number, tag) for number, tag in enumerate(tags)]
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.createDataFrame(rows, "a long, tag string").write.partitionBy("tag").parquet(target)
    # Spark's folders have no form for the empty string: it comes back as NULL.
    frame = spark.read.schema("a long, tag string").parquet(target)
    (scan,) = [node for node in nodes.walk(plan_of(frame)) if isinstance(node, FileScan)]
    assert {file.partition for file in scan.files} == {("null",), (None,), ('a"b',), ("é/ü",), ("__HIVE__",)}
    assert sorted(frame.collect()) == sorted((n, tag or None) for n, tag in enumerate(tags))
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"


def test_a_collated_string_is_not_a_string(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "collated")
    spark.sql("select 'a' as s union all select 'A'").coalesce(1).write.parquet(path)
    for kind in ("string collate UTF8_LCASE", "array<string collate UTF8_LCASE>"):
        plan = plan_of(spark.read.schema(f"s {kind}").parquet(path))
        (column,) = plan.output
        assert "collate" in str(column.type)
        assert column.type == OpaqueType("string collate UTF8_LCASE") or kind.startswith("array")
    spark.read.schema("s string collate UTF8_LCASE").parquet(path).createOrReplaceTempView("collated")
    assert spark.sql("select count(*) as n from collated where s = 'a'").collect() == [(2,)]
    report = volley.last_query(spark)
    assert report is not None
    assert report.jvm_rows == 2


def test_options_are_the_fields_that_are_no_children(numbers: DataFrame, spark: SparkSession) -> None:
    """Also where one child stands twice, is optional, or is a pair of a branch."""
    sql = "select a + a as x, case when a > 1 then a when a > 2 then 3 end as y, trim(s) as z, s like '%' || s as l"
    found = {
        part.function: part.options
        for part in parts(plan_of(spark.sql(f"{sql} from numbers")))
        if isinstance(part, Call)
    }
    assert found["Add"] == found["GreaterThan"] == ()
    assert found["CaseWhen"] == (("elseValue", None),)
    assert found["StringTrim"] == (("trimStr", None),)
    assert found["Like"] == (("escapeChar", "\\"),)


def test_a_column_may_be_null_above_an_outer_join_alone(spark: SparkSession) -> None:
    plan = plan_of(spark.range(5).alias("l").join(spark.range(3).alias("r"), "id", "left").select("r.id"))
    (column,) = plan.output
    below = [item for node in nodes.walk(plan) if isinstance(node, Range) for item in node.output]
    assert column.nullable
    assert [item.nullable for item in below if item.id == column.id] == [False]


# --------------------------------------------------------------------------------------------- large plans


def nested(column: Column, levels: int, grow: Callable[[Column], Column]) -> Column:
    for _ in range(levels):
        column = grow(column)
    return column


def small_reader(spark: SparkSession, most_parts: int, deepest: int) -> reader.Reader:
    gateway = spark.sparkContext._gateway
    lists = ("ProjectExec", "", "", "")
    return reader.Reader(reader.instantiate(gateway, reader.source(), *lists, most_parts, deepest))


def test_nested_cases_do_not_double(numbers: DataFrame) -> None:
    """Spark's own JSON of a plan has each branch twice on every level."""
    case = nested(F.col("a"), 60, lambda inner: F.when(F.col("s") == "x", 1).otherwise(inner + 1))
    plan = plan_of(numbers.select(case.alias("x")))
    assert len([part for part in parts(plan) if isinstance(part, Call) and part.function == "CaseWhen"]) == 60


def test_a_wide_plan(numbers: DataFrame, spark: SparkSession) -> None:
    columns = ", ".join(f"a + {n} as c{n}" for n in range(1, 1001))
    plan = plan_of(spark.sql(f"select {columns} from numbers"))
    assert [column.name for column in plan.output] == [f"c{n}" for n in range(1, 1001)]
    assert set(literals(plan)) == set(range(1, 1001))


def doubled(numbers: DataFrame, levels: int) -> Any:
    """A projection of `a + a`, of that plus itself, and so on: few objects, in very many places.

    Made of JVM objects, because Spark would walk all those places for minutes before it has a plan.
    """
    jvm: Any = numbers.sparkSession._jvm
    project = numbers.select((F.col("a") + F.col("a")).alias("x"))._jdf.queryExecution().executedPlan()
    alias = project.projectList().apply(0)
    total = alias.child()
    context = total.evalContext()
    for _ in range(levels - 1):
        total = jvm.org.apache.spark.sql.catalyst.expressions.Add(total, total, context)
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    return jvm.org.apache.spark.sql.execution.ProjectExec(
        to_seq([alias.withNewChildren(to_seq([total]))]), project.child()
    )


def test_a_plan_of_too_many_parts_is_refused(numbers: DataFrame, spark: SparkSession) -> None:
    """A part counts in each place where it stands, for that is how often the rest of a query looks at it."""
    few = doubled(numbers, 9)
    entries = small_reader(spark, 1100, 50).read(few).tables().entries
    assert len(entries) < 30
    with pytest.raises(CaptureError, match="more than 1000 parts"):
        small_reader(spark, 1000, 50).read(few)


def test_parts_in_very_many_places_are_refused_at_once(numbers: DataFrame) -> None:
    gateway = numbers.sparkSession.sparkContext._gateway
    with pytest.raises(CaptureError, match=f"more than {reader.MOST_PARTS} parts"):
        capture(gateway, doubled(numbers, 100))


def test_an_expression_too_deep_to_walk_is_left_to_spark(numbers: DataFrame, spark: SparkSession) -> None:
    deep = numbers.select(nested(F.col("a"), reader.DEEPEST + 1, lambda inner: inner * F.col("a")).alias("x"))
    with conf(spark, {"spark.sql.ansi.enabled": "false"}), pytest.raises(CaptureError, match="levels"):
        plan_of(deep)
    with conf(spark, {"spark.sql.ansi.enabled": "false"}):
        frame = numbers.select(
            nested(F.col("a"), reader.DEEPEST + 1, lambda inner: inner * F.col("a")).alias("x")
        )
        assert len(frame.collect()) == 10
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "spark"
    assert "levels" in str(report.reasons[0])


def test_as_deep_as_may_be_is_native(numbers: DataFrame, spark: SparkSession) -> None:
    levels = reader.DEEPEST - 5
    with conf(spark, {"spark.sql.ansi.enabled": "false"}):
        frame = numbers.select(nested(F.col("a"), levels, lambda inner: inner * F.col("a")).alias("x"))
        assert len(frame.collect()) == 10
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"


# ---------------------------------------------------------------------------------------- without a reader


def test_a_source_that_does_not_compile_says_why(spark: SparkSession) -> None:
    made: Future[reader.Reader] = Future()
    source = reader.source().replace("plan.productArity()", "plan.productWidth()")
    reader.compile_reader(made, spark.sparkContext._gateway, source, reader.Wanted((), ()))
    with pytest.raises(CaptureError, match=r"could not be compiled: .*productWidth"):
        reader.wait_for_reader(made)


def test_without_a_reader_spark_runs_the_query(
    numbers: DataFrame, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: Future[reader.Reader] = Future()
    broken.set_exception(CaptureError("the plan reader could not be compiled: no compiler."))
    monkeypatch.setitem(reader.READERS, spark.sparkContext._gateway, broken)
    for _ in range(2):
        assert numbers.where("a = 1").collect() == [(1, "1")]
        report = volley.last_query(spark)
        assert report is not None
        assert report.engine == "spark"
        assert "no compiler" in str(report.reasons[0])
    assert "no compiler" in str(volley.explain(numbers.where("a = 1")))
    with conf(spark, {"spark.volley.fallback": "error"}), pytest.raises(FallbackError, match="no compiler"):
        numbers.where("a = 1").collect()
