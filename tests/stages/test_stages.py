# SPDX-License-Identifier: Apache-2.0
"""Stages: the same rows as Spark for any number of workers, and no exchange that moves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from helpers.sampling import every
from volley.bench.queries import QUERIES, query_text
from volley.plan.capture import capture
from volley.plan.expressions import AggregateMode
from volley.plan.nodes import Aggregate, Exchange, Join, Node, Partitioning, Sort, StageInput, walk
from volley.stages.cut import make_stages
from volley.stages.graph import StageGraph
from volley.testing.limits import DISTRIBUTED
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf


def plan_of(spark: SparkSession, query: str) -> Node:
    physical = spark.sql(query)._jdf.queryExecution().executedPlan()
    return capture(spark.sparkContext._gateway, physical)


@pytest.fixture(params=QUERIES)
def tpch_plan(request: pytest.FixtureRequest, tpch: SparkSession) -> Node:
    """Each TPC-H plan in turn, with joins by shuffle; Spark plans it once for all tests."""
    if request.param not in _plans:
        with conf(tpch, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
            _plans[request.param] = plan_of(tpch, query_text(request.param))
    return _plans[request.param]


_plans: dict[str, Node] = {}


def nodes_of(graph: StageGraph) -> Iterator[Node]:
    for stage in graph.stages:
        yield from walk(stage.plan)


@pytest.fixture(scope="module")
def views(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tables of several files each, with NULLs, duplicates and keys that only one side has."""
    directory = tmp_path_factory.mktemp("stages")
    tables = {
        "a": "select if(id % 7 = 0, null, id % 10) k, id % 3 g, cast(id as decimal(12,2)) d, id v,"
        " cast(id % 5 as double) f, concat('s', id % 4) s from range(60)",
        "b": "select if(id % 5 = 0, null, id % 13) k, id % 2 g, id * 10 w, concat('s', id % 6) s from range(40)",
        "one": "select id k, id * 2 w from range(4)",
    }
    for name, query in tables.items():
        path = str(directory / name)
        # A native write decides itself how many files there are.
        with conf(spark_session, {"spark.volley.enabled": "false"}):
            spark_session.sql(query).repartition(1 if name == "one" else 4).write.parquet(path)
        spark_session.read.parquet(path).createOrReplaceTempView(name)
    yield
    for name in tables:
        spark_session.catalog.dropTempView(name)


@pytest.fixture
def tables(views: None, distributed: SparkSession) -> SparkSession:
    """A session with three workers, in which Spark broadcasts what is small."""
    distributed.conf.set("spark.volley.local.workers", "3")
    return distributed


JOINS = {
    "inner join": "select * from a join b on a.k = b.k",
    "inner join on two keys": "select * from a join b on a.k = b.k and a.g = b.g",
    "null-safe join": "select a.v, b.w from a join b on a.k <=> b.k",
    "left join": "select * from a left join b on a.k = b.k",
    "right join": "select * from a right join b on a.k = b.k",
    "full join": "select * from a full join b on a.k = b.k",
    "full join by text": "select * from a full join b on a.s = b.s and a.v > b.w",
    "semi join": "select * from a where k in (select k from b)",
    "anti join": "select * from a where not exists (select 1 from b where a.k = b.k)",
    "null-aware anti join": "select * from a where k not in (select k from b where k is not null)",
    "null-aware anti join with nulls": "select * from a where k not in (select k from b)",
    "existence join": "select v, k in (select k from b where k is not null) or g = 1 from a where k is not null",
    "cross join": "select a.v, one.k from a cross join one",
    "cross join of which only the count is wanted": "select count(*) from a cross join b",
    "loop join": "select a.v, b.w from a join b on a.v > b.w",
    "left loop join": "select a.v, b.w from a left join b on a.v > b.w",
    "full loop join": "select a.v, b.w from a full join b on a.v > b.w",
    "right loop join": "select a.v, b.w from a right join b on a.v > b.w",
    "join then group by the other side's key": (
        "select b.k, count(*), sum(a.v) from a join b on a.k = b.k group by b.k"
    ),
    "outer join then group by the side that may be null": (
        "select b.k, count(*) from a left join b on a.k = b.k group by b.k"
    ),
    "full join then group by a key": "select a.k, count(*) from a full join b on a.k = b.k group by a.k",
    "group then join on the group": (
        "select x.k, c, w from (select k, count(*) c from a group by k) x join b on x.k = b.k"
    ),
    "join on more keys than the group": (
        "select * from (select k, g, count(*) c from a group by k, g) x join b on x.k = b.k and x.g = b.g"
    ),
    "self join": "select x.v, y.v from a x join a y on x.k = y.k and x.v < y.v",
    "the same sub-query twice": (
        "with t as (select k, sum(v) s from a group by k) select * from t x join t y on x.s = y.s"
    ),
    "union of tables that Spark has laid out by the group": (
        "select k, count(*), sum(x) from (select /*+ repartition(3, k) */ k, v x from a"
        " union all select /*+ repartition(3, k) */ k, w from b) group by k"
    ),
    "window over a union that Spark has laid out": (
        "select k, x, count(*) over (partition by k) from (select /*+ repartition(3, k) */ k, v x from a"
        " union all select /*+ repartition(3, k) */ k, w from b)"
    ),
    "union then join": (
        "select * from (select k, v from a union all select k, w from b) u join one on u.k = one.k"
    ),
    "window on part of the keys of a join": (
        "select a.v, rank() over (partition by a.k order by a.v, b.w) from a join b on a.k = b.k and a.g = b.g"
    ),
}

OTHERS = {
    "one row for no rows": "select count(*), sum(v), max(s) from a where v < 0",
    "groups": "select k, g, count(*), sum(d), avg(d), min(s) from a group by k, g",
    "groups of groups": "select g, sum(c) from (select k, g, count(*) c from a group by k, g) group by g",
    "distinct": "select distinct k, g from a",
    "distinct aggregate": "select g, count(distinct k), sum(v) from a group by g",
    "distinct aggregate over all": "select count(distinct k), sum(distinct g), count(*) from a",
    "several distinct aggregates": "select g, count(distinct k), count(distinct s), sum(v) from a group by g",
    "state that cannot leave a task": "select g, stddev_samp(f), var_pop(f), count(*) from a group by g",
    "state that cannot leave a task, over all": "select stddev_samp(f), sum(v) from a",
    "group by an expression": "select v % 4 + 1, variance(f) from a group by v % 4 + 1",
    "union of different layouts": (
        "select k, count(*) c from a group by k union all select k, w from b union all select k, w from one"
    ),
    "union with a single row": "select max(v) m from a union all select w from b union all select 7",
    "union of one task's rows, grouped": (
        "select m, count(*) from (select max(v) m from a union all select w from b union all select 7) group by m"
    ),
    "window": "select v, row_number() over (partition by g order by v), sum(v) over (partition by g) from a",
    "window over all": "select v, rank() over (order by k, v) from a",
    "rollup": "select k, g, sum(v), grouping_id() from a group by rollup(k, g)",
    "cube with a distinct": "select g, s, count(distinct k) from a group by cube(g, s)",
    "order": "select * from a order by k desc, v",
    "order of an expression": "select v, -v n from a order by k + g nulls last, v desc",
    "order then limit": "select * from a order by v desc limit 7",
    "order then offset": "select * from a order by v offset 50",
    "order then limit and offset": "select v from a order by v limit 5 offset 9",
    "limit": "select count(*) from (select * from a limit 11)",
    "limit and offset": "select count(*) from (select * from a limit 11 offset 55)",
    "limit of nothing": "select * from a limit 0",
    "limit inside": "select k, count(*) from (select * from a order by v limit 20) group by k",
    "round robin": "select /*+ repartition(5) */ k, v from a",
    "by key": "select /*+ repartition(5, k) */ k, v from a",
    "by range": "select k, count(*) from (select /*+ repartition_by_range(3, k) */ k from a) group by k",
    "scalar sub-query": "select v from a where v > (select avg(w) / 10 from b)",
    "values": "select * from values (1, 'x'), (2, null) t(k, s) join a using (k)",
    "numbers": "select id % 3 g, count(*) from range(100) group by 1",
    "nothing to read": "select k, count(*) from a where false group by k",
}


@pytest.mark.parametrize(
    "threshold", [pytest.param("10m", marks=pytest.mark.slow), "-1"], ids=["broadcast", "shuffle"]
)
@pytest.mark.parametrize("name", every(3, JOINS))
def test_joins_give_sparks_rows_when_exchanges_are_real(
    tables: SparkSession, name: str, threshold: str
) -> None:
    with conf(tables, {"spark.sql.autoBroadcastJoinThreshold": threshold}):
        assert_same_rows(tables, JOINS[name])


@pytest.mark.parametrize("name", every(2, OTHERS))
def test_rows_are_sparks_when_exchanges_are_real(tables: SparkSession, name: str) -> None:
    assert_same_rows(tables, OTHERS[name])


def test_one_worker_has_one_stage_of_one_task_and_one_a_subquery(tpch_plan: Node) -> None:
    graph = make_stages(tpch_plan, 1, DISTRIBUTED)
    assert [stage.tasks for stage in graph.stages] == [1] * (1 + len(graph.subqueries))
    assert not any(isinstance(node, Exchange | StageInput) for node in nodes_of(graph))


def test_one_worker_aggregates_at_once(tpch_plan: Node) -> None:
    """Each aggregate reads rows and gives values: no state is made only to be merged again."""
    modes = {
        call.mode
        for node in nodes_of(make_stages(tpch_plan, 1, DISTRIBUTED))
        if isinstance(node, Aggregate)
        for call in node.calls
    }
    assert modes <= {AggregateMode.COMPLETE}


def test_stages_read_only_earlier_ones_and_keep_no_exchange(tpch_plan: Node) -> None:
    graph = make_stages(tpch_plan, 3, DISTRIBUTED)
    for position, stage in enumerate(graph.stages):
        assert stage.id == position
        assert all(read.stage < position for read in stage.inputs)
        assert (stage.output is None) == (stage is graph.result)
    assert not any(isinstance(node, Exchange) for node in nodes_of(graph))
    read = {item.stage for stage in graph.stages for item in stage.inputs}
    assert read == {stage.id for stage in graph.stages} - {graph.result.id} - graph.subqueries


def test_both_sides_of_a_shuffle_join_are_cut_alike(tpch_plan: Node) -> None:
    graph = make_stages(tpch_plan, 3, DISTRIBUTED)
    for node in nodes_of(graph):
        if isinstance(node, Join):
            sides = [graph[child.stage].output for child in node.children if isinstance(child, StageInput)]
            hashed = [side for side in sides if side and side.partitioning is Partitioning.HASH]
            assert len({side.partitions for side in hashed}) <= 1
            assert len({tuple(key.type for key in side.keys) for side in hashed}) <= 1


def test_equal_sub_plans_run_once(tables: SparkSession) -> None:
    query = "with t as (select k, sum(v) s from a group by k) select * from t x join t y on x.s = y.s"
    graph = make_stages(plan_of(tables, query), 3, DISTRIBUTED)
    scans = [stage for stage in graph.stages if not stage.inputs]
    assert len(scans) == 1


def test_sub_plans_that_differ_in_a_literal_stay_apart(tables: SparkSession) -> None:
    query = (
        "select * from (select k, sum(v) s from a where v > 1 group by k) x"
        " join (select k, sum(v) s from a where v > 2 group by k) y on x.s = y.s"
    )
    graph = make_stages(plan_of(tables, query), 3, DISTRIBUTED)
    assert len([stage for stage in graph.stages if not stage.inputs]) == 2


def test_a_global_sort_merges_what_its_tasks_sorted(tables: SparkSession) -> None:
    graph = make_stages(plan_of(tables, "select * from a order by v"), 3, DISTRIBUTED)
    producer, reader = graph.stages
    assert producer.tasks == 3
    assert isinstance(producer.plan, Sort)
    assert not producer.plan.whole
    assert reader.tasks == 1
    assert reader.ordered
    assert reader.inputs[0].sorted_by == producer.plan.keys


def test_a_limit_is_first_taken_in_every_task(tables: SparkSession) -> None:
    graph = make_stages(plan_of(tables, "select * from a limit 5"), 3, DISTRIBUTED)
    producer, _ = graph.stages
    assert producer.output is not None
    assert producer.output.enough_rows == 5


def test_what_one_task_holds_stays_in_one_stage(tables: SparkSession) -> None:
    graph = make_stages(
        plan_of(tables, "select k, sum(w) from one group by k order by k limit 3"), 3, DISTRIBUTED
    )
    # One file: its reader is alone, but the groups are still dealt to three tasks.
    assert [stage.tasks for stage in graph.stages] == [1, 3, 1]
