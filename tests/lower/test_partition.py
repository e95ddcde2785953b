# SPDX-License-Identifier: Apache-2.0
"""DataFusion lays rows out as asked: the trick that this rests on is pinned here."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from datafusion import SessionContext, col

from volley.lower.expressions import column_name
from volley.lower.operators import lower
from volley.lower.partition import partitioned_plan
from volley.lower.sessions import hashing_context, planning_context
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    EvalMode,
    Expression,
    Literal,
    SortKey,
)
from volley.plan.nodes import Aggregate, Filter, Limit, LocalRows, Node, Range, Sort, TopN
from volley.plan.types import BOOLEAN, DOUBLE, LONG, STRING, to_arrow

NUMBER = Attribute(1, "n", LONG)
OTHER = Attribute(2, "m", LONG)
COUNT = Attribute(3, "c", LONG)

PARTITIONS = 4


def rows(*columns: tuple[Attribute, list[object]]) -> LocalRows:
    schema = pa.schema([(column_name(a.id), to_arrow(a.type)) for a, _ in columns])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.RecordBatch.from_arrays([pa.array(v, to_arrow(a.type)) for a, v in columns], schema=schema)
        )
    return LocalRows(tuple(a for a, _ in columns), sink.getvalue().to_pybytes())


def partitions_of(plan: Node, *keys: Expression) -> list[pa.Table]:
    """What every partition gets."""

    async def drain(context: SessionContext, resources: ExitStack) -> list[list[pa.RecordBatch]]:
        frame = lower(plan, context, lambda node: pytest.fail("there are no inputs"), resources)
        hashed = partitioned_plan(frame, hashing_context(PARTITIONS), keys, PARTITIONS)
        assert hashed is not None
        assert hashed.output_partitioning.scheme == "Hash"

        async def one(partition: int) -> list[pa.RecordBatch]:
            return [batch.to_pyarrow() async for batch in context.execute(hashed, partition)]

        return await asyncio.gather(*(one(partition) for partition in range(PARTITIONS)))

    with ExitStack() as resources:
        found = asyncio.run(drain(planning_context(PARTITIONS), resources))
    schema = next(batch.schema for batches in found for batch in batches)
    return [pa.Table.from_batches(batches, schema=schema) for batches in found]


def values(table: pa.Table, *attributes: Attribute) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(column_name(a.id)).to_pylist() for a in attributes), strict=True))


def numbers(count: int) -> Node:
    return Range(0, count, 1, (NUMBER,))


def counted(child: Node, *grouping: Attribute) -> Aggregate:
    count = Call("Count", (Literal(1, LONG),), LONG)
    call = AggregateCall(count, AggregateMode.COMPLETE, False, None, COUNT.id)
    return Aggregate(grouping, (call,), (COUNT,), (*grouping, COUNT), child)


def test_every_row_is_in_one_partition_and_equal_keys_in_the_same() -> None:
    pairs = rows((NUMBER, [n % 17 for n in range(1000)]), (OTHER, list(range(1000))))
    found = [values(table, NUMBER, OTHER) for table in partitions_of(pairs, NUMBER)]
    assert sorted(pair for part in found for pair in part) == sorted((n % 17, n) for n in range(1000))
    homes: dict[object, int] = {}
    for number, part in enumerate(found):
        for key, _ in part:
            assert homes.setdefault(key, number) == number


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(numbers(3), id="few rows"),
        pytest.param(numbers(50_000), id="many rows"),
        pytest.param(counted(numbers(50_000), NUMBER), id="groups"),
        pytest.param(Limit(20, 0, False, numbers(1000)), id="limit"),
        pytest.param(Sort((SortKey(NUMBER, False, False),), False, numbers(1000)), id="sorted"),
        pytest.param(TopN(5, 0, (SortKey(NUMBER, False, False),), (NUMBER,), numbers(1000)), id="top"),
        pytest.param(
            Filter(Call("EqualTo", (NUMBER, Literal(3, LONG)), BOOLEAN), numbers(1000)), id="constant key"
        ),
        pytest.param(rows((NUMBER, [None, 1, None, 2])), id="nulls"),
    ],
)
def test_a_key_has_the_same_home_whatever_plan_it_comes_from(plan: Node) -> None:
    """Producers of one join are different plans, in different tasks; they must agree on every key."""
    home = {
        key: number
        for number, table in enumerate(partitions_of(rows((NUMBER, [None, *range(50_000)])), NUMBER))
        for (key,) in values(table, NUMBER)
    }
    found = {
        key: number
        for number, table in enumerate(partitions_of(plan, NUMBER))
        for (key,) in values(table, NUMBER)
    }
    assert found
    assert found.items() <= home.items()


def test_the_order_of_keys_counts_also_below_an_aggregate_that_prefers_another() -> None:
    pairs = rows((NUMBER, [n % 7 for n in range(500)]), (OTHER, [n % 11 for n in range(500)]))
    plain, grouped = (
        [set(values(table, NUMBER, OTHER)) for table in partitions_of(plan, OTHER, NUMBER)]
        for plan in (pairs, counted(pairs, NUMBER, OTHER))
    )
    assert plain == grouped


def test_part_of_the_groups_is_not_taken_for_the_whole() -> None:
    """Rows grouped by (n, m) are hashed by both inside; asked for n alone, they must be moved again."""
    pairs = rows((NUMBER, [n % 7 for n in range(500)]), (OTHER, [n % 11 for n in range(500)]))
    found = [
        {n for n, _ in values(table, NUMBER, OTHER)}
        for table in partitions_of(counted(pairs, NUMBER, OTHER), NUMBER)
    ]
    assert sum(len(part) for part in found) == 7


def test_a_key_may_be_computed() -> None:
    double = Call("Add", (NUMBER, Literal(1, LONG)), LONG, EvalMode.LEGACY)
    computed = partitions_of(numbers(100), double)
    # The computed key stands behind the columns of the plan, where the writer can leave it out.
    assert computed[0].column_names[0] == column_name(NUMBER.id)
    shifted = partitions_of(Range(1, 101, 1, (NUMBER,)), NUMBER)
    assert [[n + 1 for (n,) in values(table, NUMBER)] for table in computed] == [
        [n for (n,) in values(table, NUMBER)] for table in shifted
    ]


@pytest.mark.parametrize(
    ("attribute", "column"),
    [(Attribute(1, "s", STRING), ["", "ä", None, "x" * 50]), (Attribute(1, "f", DOUBLE), [0.0, 1.5, None])],
)
def test_keys_of_other_types(attribute: Attribute, column: list[object]) -> None:
    found = partitions_of(rows((attribute, column)), attribute)
    assert sum(table.num_rows for table in found) == len(column)


def test_a_plan_that_provably_has_no_rows_has_no_partitions() -> None:
    none = Filter(Literal(False, BOOLEAN), numbers(10))
    with ExitStack() as resources:
        context = planning_context(PARTITIONS)
        frame = lower(none, context, lambda node: pytest.fail("there are no inputs"), resources)
        assert partitioned_plan(frame, hashing_context(PARTITIONS), (NUMBER,), PARTITIONS) is None


@pytest.mark.parametrize("keys", [(1,), (2,), (1, 2)])
def test_keys_that_a_join_has_given_another_name(keys: tuple[int, ...]) -> None:
    """After a join on a = b DataFusion says that rows lie by b; asked for a, that must not end the query."""
    context = planning_context(3)
    left = context.from_arrow(pa.table({"c1": pa.array(range(1000), pa.int64())}))
    right = context.from_arrow(pa.table({"c2": pa.array(range(0, 2000, 2), pa.int64())}))
    joined = left.join_on(right, col("c1") == col("c2"))
    plan = partitioned_plan(joined, hashing_context(3), [Attribute(key, "", LONG) for key in keys], 3)
    assert plan is not None
    assert plan.partition_count == 3
