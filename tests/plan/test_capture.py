# SPDX-License-Identifier: Apache-2.0
"""Spark's plan as plain data: nothing that JSON loses may be lost, nothing may be guessed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from helpers.captured import parts, plan_of
from volley.bench.queries import QUERIES, query_text
from volley.plan import nodes
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    EvalMode,
    Literal,
    ScalarSubquery,
    WindowCall,
)
from volley.plan.nodes import (
    Exchange,
    Expand,
    FileScan,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    Node,
    OneRow,
    Partitioning,
    Range,
    Unknown,
)
from volley.testing.session import conf


def calls(plan: Node, function: str) -> list[Call]:
    return [part for part in parts(plan) if isinstance(part, Call) and part.function == function]


def find(plan: Node, kind: type[Node]) -> list[Node]:
    return [node for node in nodes.walk(plan) if isinstance(node, kind)]


@pytest.fixture(scope="module")
def numbers_frame(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("numbers") / "numbers")
    with conf(spark_session, {"spark.volley.enabled": "false"}):
        rows = "select id as a, id % 3 as b, cast(id as string) as s from range(10)"
        spark_session.sql(rows).write.parquet(path)
        return spark_session.read.parquet(path)


@pytest.fixture
def numbers(spark: SparkSession, numbers_frame: DataFrame) -> SparkSession:
    numbers_frame.createOrReplaceTempView("numbers")
    return spark


@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", QUERIES)
def test_every_operator_of_tpch_has_a_form(tpch: SparkSession, name: str, adaptive: str) -> None:
    # With code generation Spark wraps its operators, as it does outside of tests.
    with conf(tpch, {"spark.sql.adaptive.enabled": adaptive, "spark.sql.codegen.wholeStage": "true"}):
        plan = plan_of(tpch.sql(query_text(name)))
    assert not find(plan, Unknown)
    assert find(plan, FileScan)
    subqueries = [part for part in parts(plan) if isinstance(part, ScalarSubquery)]
    assert bool(subqueries) == (name in ("q11", "q15", "q22"))


def test_the_evaluation_mode_of_each_expression(numbers: SparkSession) -> None:
    sql = "select a + b as x, try_add(a, b) as y, cast(s as int) as z, try_cast(s as int) as t from numbers"
    with conf(numbers, {"spark.sql.ansi.enabled": "true"}):
        plan = plan_of(numbers.sql(sql))
    assert [call.mode for call in calls(plan, "Add")] == [EvalMode.ANSI, EvalMode.TRY]
    assert [call.mode for call in calls(plan, "Cast")] == [EvalMode.ANSI, EvalMode.TRY]
    with conf(numbers, {"spark.sql.ansi.enabled": "false"}):
        plan = plan_of(numbers.sql(sql))
    assert [call.mode for call in calls(plan, "Add")] == [EvalMode.LEGACY, EvalMode.TRY]


def test_modes_follow_the_expression_not_the_session(numbers: SparkSession) -> None:
    with conf(numbers, {"spark.sql.ansi.enabled": "false"}):
        made_without_ansi = numbers.sql("select a + b from numbers")
        made_without_ansi._jdf.queryExecution().analyzed()
    with conf(numbers, {"spark.sql.ansi.enabled": "true"}):
        plan = plan_of(made_without_ansi)
    assert [call.mode for call in calls(plan, "Add")] == [EvalMode.LEGACY]


def test_fields_that_json_turns_into_null(numbers: SparkSession) -> None:
    plan = plan_of(numbers.sql("select s like 'a!_%' escape '!' as x, s like 'b%_' as y from numbers"))
    assert [call.option("escapeChar") for call in calls(plan, "Like")] == ["!", "\\"]


def test_a_long_in_list_is_an_in_list(numbers: SparkSession) -> None:
    texts = [f"a,{number}" for number in range(30)]
    quoted = ", ".join(f"'{text}'" for text in texts)
    plan = plan_of(numbers.sql(f"select a from numbers where s in ({quoted})"))
    found = {part.value for part in calls(plan, "In")[0].arguments if isinstance(part, Literal)}
    assert found == set(texts)
    assert not calls(plan, "InSet")


def test_literals_have_their_internal_form(spark: SparkSession) -> None:
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    with conf(spark, {"spark.sql.optimizer.excludedRules": rule}):
        plan = plan_of(
            spark.sql(
                "select date'1970-01-02' d, timestamp'1970-01-01 00:00:01' t, 1.50 x, true b, 'null' s, "
                "cast(null as string) n, double('NaN') f, 7L l from range(1)"
            )
        )
    values = [part.value for part in parts(plan) if isinstance(part, Literal)]
    assert values[:6] == [1, 1_000_000, Decimal("1.50"), True, "null", None]
    assert values[6] != values[6]
    assert values[7] == 7


def test_files_sizes_and_partition_values(numbers: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "by day")
    with conf(numbers, {"spark.volley.enabled": "false"}):
        frame = numbers.sql(
            "select a, date'2024-01-01' as day, concat('x=', s) as tag from numbers where a < 2"
        )
        frame.write.partitionBy("day", "tag").parquet(target)
    plan = plan_of(numbers.read.parquet(target).filter("tag = 'x=1'"))
    (scan,) = find(plan, FileScan)
    assert isinstance(scan, FileScan)
    assert [column.name for column in scan.partition_columns] == ["day", "tag"]
    (file,) = scan.files
    assert file.partition == (19723, "x=1")
    path = Path(file.path)
    assert path.stat().st_size == file.size_bytes
    assert path.stat().st_mtime_ns // 1_000_000 == file.modified_ms


def test_rows_of_the_driver(spark: SparkSession) -> None:
    plan = plan_of(spark.sql("select * from values (1, 'a', 1.5), (2, null, 2.25) as t(x, y, z)"))
    assert isinstance(plan, LocalRows)
    table = pa.ipc.open_stream(plan.ipc).read_all()
    assert table.to_pydict() == {"c0": [1, 2], "c1": ["a", None], "c2": [Decimal("1.50"), Decimal("2.25")]}


def test_small_sources(spark: SparkSession) -> None:
    limit = plan_of(spark.range(5, 50, 5).limit(2))
    assert isinstance(limit, Limit)
    assert (limit.count, limit.offset) == (2, 0)
    (range_,) = find(limit, Range)
    assert isinstance(range_, Range)
    assert (range_.start, range_.end, range_.step) == (5, 50, 5)
    assert find(plan_of(spark.sql("select rand() as r")), OneRow)


def test_an_offset_counts_inside_the_limit(numbers: SparkSession) -> None:
    frame = numbers.table("numbers").offset(2).limit(3)
    limits = [node for node in find(plan_of(frame), Limit) if isinstance(node, Limit)]
    assert any((limit.count, limit.offset) == (3, 2) for limit in limits)


def test_modes_of_aggregates(numbers: SparkSession) -> None:
    plan = plan_of(
        numbers.sql("select b, count(distinct s), sum(a) filter (where a > 1) from numbers group by b")
    )
    aggregates = [part for part in parts(plan) if isinstance(part, AggregateCall)]
    modes = {call.mode for call in aggregates}
    assert modes >= {AggregateMode.FINAL, AggregateMode.PARTIAL, AggregateMode.PARTIAL_MERGE}
    assert any(call.distinct for call in aggregates)
    assert any(call.filter is not None for call in aggregates)


def test_windows_and_frames(numbers: SparkSession) -> None:
    plan = plan_of(
        numbers.sql(
            "select sum(a) over (partition by b order by a rows between 2 preceding and 1 following) from numbers"
        )
    )
    (window,) = [part for part in parts(plan) if isinstance(part, WindowCall)]
    assert window.frame.rows
    assert isinstance(window.frame.lower, Literal)
    assert window.frame.lower.value == -2
    assert isinstance(window.frame.upper, Literal)
    assert window.frame.upper.value == 1
    assert [key.ascending for key in window.order_by] == [True]


def test_grouping_sets_expand(numbers: SparkSession) -> None:
    (expand,) = find(plan_of(numbers.sql("select b, s, count(*) from numbers group by cube(b, s)")), Expand)
    assert isinstance(expand, Expand)
    assert len(expand.projections) == 4
    assert {len(projection) for projection in expand.projections} == {len(expand.output)}


def test_an_existence_join_keeps_its_flag(numbers: SparkSession) -> None:
    sql = "select a from numbers n where b = 1 or exists (select 1 from numbers m where m.a = n.b)"
    (join,) = find(plan_of(numbers.sql(sql)), Join)
    assert isinstance(join, Join)
    assert join.kind is JoinKind.EXISTENCE
    assert isinstance(join.exists, Attribute)


def test_kinds_of_exchange(numbers: SparkSession) -> None:
    table = numbers.table("numbers")
    frames = {
        Partitioning.ROUND_ROBIN: table.repartition(3),
        Partitioning.HASH: table.repartition(3, "a"),
        Partitioning.RANGE: table.orderBy("a"),
        Partitioning.SINGLE: table.groupBy().count(),
        Partitioning.BROADCAST: table.join(table.hint("broadcast"), "a"),
    }
    for kind, frame in frames.items():
        exchanges = [node for node in find(plan_of(frame), Exchange) if isinstance(node, Exchange)]
        assert kind in {exchange.partitioning for exchange in exchanges}


def test_a_reused_exchange_is_read_where_it_stands(numbers: SparkSession) -> None:
    sql = "with g as (select b, sum(a) as t from numbers group by b) select * from g x join g y on x.t = y.t"
    with conf(numbers, {"spark.sql.adaptive.enabled": "false"}):
        frame = numbers.sql(sql)
        assert "ReusedExchange" in frame._jdf.queryExecution().executedPlan().toString()
        plan = plan_of(frame)
    assert not find(plan, Unknown)
    ids = [column.id for column in plan.output]
    assert len(ids) == len(set(ids)) == 4


def test_what_volley_does_not_know_keeps_its_name(numbers: SparkSession) -> None:
    plan = plan_of(numbers.sql("select transform(a) using 'cat' as (b) from numbers"))
    found = [node.name for node in find(plan, Unknown) if isinstance(node, Unknown)]
    assert found == ["SparkScriptTransformationExec"]
