# SPDX-License-Identifier: Apache-2.0
"""Subqueries are stages of the query that asks: Spark's rows, no work twice, and lost results are computed again."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.captured import plan_of
from helpers.recovery import NUMBER, WORKERS, Losses, exchanged, finished, numbers, run, three_stages
from helpers.releases import runs_here
from volley import last_query
from volley.errors import BlockMissing, DataError
from volley.plan.expressions import Call, Expression, InSubquery, Literal, ScalarSubquery
from volley.plan.nodes import Filter, Node, Partitioning, StageInput
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    LONG,
    STRING,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructField,
    StructType,
    to_arrow,
)
from volley.rpc.codec import decode, encode
from volley.stages.adaptive import AdaptivePlan, answer
from volley.stages.cut import cut, make_stages
from volley.stages.graph import Output, Stage, StageGraph
from volley.stages.reuse import merge_equal_stages
from volley.stages.subqueries import subquery_stages, to_bytes, with_results
from volley.testing.limits import DISTRIBUTED
from volley.testing.rows import assert_same_rows

QUERIES = {
    "in a filter": "select count(*) from orders where o_totalprice > (select avg(o_totalprice) from orders)",
    "in a projection": "select o_orderkey, (select max(c_custkey) from customer) m from orders where o_orderkey < 9",
    "after groups": "select o_custkey, count(*) n from orders group by 1"
    " having count(*) > (select avg(n) from (select count(*) n from orders group by o_custkey))",
    "in another": "select count(*) from orders where o_totalprice > (select avg(o_totalprice) from orders"
    " where o_custkey < (select avg(c_custkey) from customer))",
    "of no rows": "select count(*) from orders"
    " where o_totalprice > (select max(c_acctbal) from customer where c_custkey < 0)",
    "two of one table": "select (select max(o_orderkey) from orders) a, (select min(o_orderkey) from orders) b",
    "in the condition of a join": "select count(*) from orders join customer on o_custkey = c_custkey"
    " and o_totalprice > (select avg(c_acctbal) from customer)",
    "lateral, with a window": "select c_custkey, x.* from customer join lateral (select o_orderkey,"
    " sum(o_totalprice) over (order by o_orderdate, o_orderkey) s from orders where o_custkey >= c_custkey + 40"
    " and o_orderkey < 60) x where c_custkey < 5",
    "lateral, with a rank": "select c_custkey, x.* from customer left join lateral (select o_orderkey, rank() over"
    " (partition by o_orderstatus order by o_orderkey) r from orders where o_custkey = c_custkey) x",
    "lateral, with groups": "select c_custkey, x.* from customer join lateral (select o_orderstatus, count(*) n,"
    " max(o_orderdate) d from orders where o_custkey = c_custkey group by 1) x",
    "lateral, with a union": "select n_name, x.* from nation join lateral (select sum(s_acctbal) s from supplier"
    " where s_nationkey = n_nationkey union all select max(c_acctbal) from customer where c_nationkey = n_nationkey) x",
    "lateral, with distinct rows": "select n_name, x.* from nation join lateral (select distinct c_mktsegment from"
    " customer where c_nationkey = n_nationkey and c_acctbal > 5000) x",
    "lateral, in another": "select r_name, x.* from region join lateral (select n_name, y.n from nation join lateral"
    " (select count(*) n from customer where c_nationkey = n_nationkey) y where n_regionkey = r_regionkey) x",
}


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "3"])
@pytest.mark.parametrize(
    "query", [pytest.param(text, id=name) for name, text in QUERIES.items() if runs_here(text)]
)
def test_rows_are_sparks(tpch: SparkSession, query: str, workers: str) -> None:
    tpch.conf.set("spark.volley.local.workers", workers)
    assert_same_rows(tpch, query)


@pytest.mark.embedded
def test_its_stages_are_in_the_report(tpch: SparkSession) -> None:
    tpch.conf.set("spark.volley.local.workers", "1")
    tpch.sql(QUERIES["in a filter"]).collect()
    report = last_query(tpch)
    assert report is not None
    assert [(stage.stage, stage.rows) for stage in report.stages] == [(0, 1), (1, 1)]
    assert report.native_tasks == 2


def test_what_query_and_subquery_have_in_common_is_computed_once(tpch: SparkSession) -> None:
    text = "select o_custkey, sum(o_totalprice) s from orders group by 1"
    plan = plan_of(tpch.sql(f"{text} having sum(o_totalprice) = (select max(s) from ({text}))"))
    graph = make_stages(plan, WORKERS, DISTRIBUTED)
    asking = [stage for stage in graph.stages if subquery_stages(stage.plan)]
    assert {number for stage in asking for number in subquery_stages(stage.plan)} == graph.subqueries
    # The scan with its partial sums, and the exchange of these.
    read = [node.stage for stage in graph.stages for node in stage.inputs]
    assert read.count(0) == 2


def test_a_result_is_not_merged_with_what_another_stage_reads() -> None:
    """Its reader might have rows left out of it, or do its work itself."""
    plan = numbers(3)
    stages = tuple(Stage(number, plan, 1, Output(Partitioning.SINGLE)) for number in (0, 1))
    reads = Stage(2, StageInput(1, (NUMBER,)), 1)
    assert len(merge_equal_stages(StageGraph((*stages, reads))).stages) == 2
    assert merge_equal_stages(StageGraph((*stages, reads), frozenset({0}))).subqueries == {0}
    assert len(merge_equal_stages(StageGraph((*stages, reads), frozenset({0}))).stages) == 3


def over(value: Node) -> Node:
    """The numbers up to 3000 that are larger than the one of another plan."""
    condition = Call("GreaterThan", (NUMBER, ScalarSubquery(9, value, LONG)), BOOLEAN)
    return three_stages(child=Filter(condition, numbers(3000)))


def single(value: int) -> Node:
    alone: Expression = Call("EqualTo", (NUMBER, Literal(value, LONG)), BOOLEAN)
    return exchanged(Partitioning.HASH, Filter(alone, numbers(value + 1)))


def test_the_same_result_gives_the_same_plan() -> None:
    """The frame of a stage is known by the identity of its plan (decision 30)."""
    graph = cut(over(single(5)), WORKERS, DISTRIBUTED)
    (asking,) = (stage for stage in graph.stages if stage.subqueries)

    def insert(value: int) -> Node:
        result = pa.table({"0": pa.array([value], pa.int64())})
        return answer(AdaptivePlan.start(graph, {}), 1, result)[asking.id].plan

    assert insert(5) is insert(5)
    assert insert(6) != insert(5)


def test_results_are_told_apart_by_their_bytes() -> None:
    zero, negative = (pa.table({"0": pa.array([value])}) for value in (0.0, -0.0))
    assert zero == negative
    assert to_bytes(zero) != to_bytes(negative)


def test_a_lost_result_is_computed_again_and_nothing_else() -> None:
    graph = cut(over(single(2990)), WORKERS, DISTRIBUTED)
    assert graph.subqueries == {1}
    losses = Losses(stage=1, count=1)
    rows, log = run(over(single(2990)), losses)
    assert rows == list(range(2991, 3000))
    assert len(losses.lost) == 1
    again = {task: count for task, count in finished(log).items() if count > 1}
    assert again == {(1, losses.lost[0].task.task): 2}


def test_a_result_that_is_always_lost_ends_the_query() -> None:
    with pytest.raises(BlockMissing, match="is gone"):
        run(over(single(5)), Losses(stage=1, count=99))


def test_several_rows_are_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="more than one row"):
        run(over(exchanged(Partitioning.HASH, numbers(2))), Losses(stage=9, count=0))


def test_values_to_look_among() -> None:
    among = InSubquery(9, NUMBER, exchanged(Partitioning.HASH, numbers(4)))
    rows, _ = run(three_stages(child=Filter(among, numbers(3000))), Losses(stage=9, count=0))
    assert rows == [0, 1, 2, 3]


DAY, TIME = date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 678)
TEXTS = ArrayType(STRING, True)
PAIR = StructType((StructField("n", LONG, True), StructField("texts", TEXTS, True)))
RESULTS: list[tuple[DataType, Any]] = [
    (LONG, 5),
    (DOUBLE, -0.0),
    (DecimalType(5, 2), Decimal("1.50")),
    (BINARY, b"x"),
    (DATE, DAY),
    (TIMESTAMP_NTZ, TIME),
    (TEXTS, ["a", None]),
    (TEXTS, []),
    (TEXTS, None),
    (ArrayType(DATE, True), [DAY, None]),
    (ArrayType(TIMESTAMP_NTZ, True), [TIME]),
    (ArrayType(TEXTS, True), [["a"], None]),
    (PAIR, {"n": None, "texts": ["a"]}),
    (ArrayType(PAIR, True), [{"n": 1, "texts": None}]),
]


@pytest.mark.parametrize(("data_type", "value"), RESULTS, ids=str)
def test_every_result_can_be_sent_to_a_worker(data_type: DataType, value: Any) -> None:
    stage = StageInput(1, ())
    plan = Filter(Call("IsNotNull", (ScalarSubquery(1, stage, data_type),), BOOLEAN), numbers(1))
    result = pa.table({"0": pa.array([value], to_arrow(data_type))})
    filled = with_results(plan, {1: result})
    assert decode(encode(filled)) == filled
    among = InSubquery(1, Literal(None, data_type), stage)
    if value is not None:
        filled = with_results(Filter(among, numbers(1)), {1: result})
        assert decode(encode(filled)) == filled


def test_a_long_array_is_left_to_spark() -> None:
    plan = Filter(Call("IsNotNull", (ScalarSubquery(1, StageInput(1, ()), TEXTS),), BOOLEAN), numbers(1))
    result = pa.table({"0": pa.array([["a"] * 20_000], to_arrow(TEXTS))})
    with pytest.raises(DataError, match="20000 values"):
        with_results(plan, {1: result})


@pytest.mark.parametrize(
    "made",
    [
        "array(max(d), null)",
        "array(named_struct('d', max(d), 'k', array(min(k))))",
        "array(array(max(b), null))",
    ],
)
def test_arrays(tables: SparkSession, made: str) -> None:
    assert_same_rows(tables, f"select k, (select {made} from t where k = 1) a from u")


@pytest.mark.parametrize("workers", ["1", "3"])
def test_merged_subqueries_of_which_one_cannot_be_null(tables: SparkSession, workers: str) -> None:
    """Spark computes both at once, in a struct."""
    tables.conf.set("spark.volley.local.workers", workers)
    assert_same_rows(tables, "select (select count(*) from t), (select max(d) from t)")
    assert_same_rows(
        tables, "select k from u where (select count(l) from t) > 3 and (select count(*) from t) > 9"
    )
