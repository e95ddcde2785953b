# SPDX-License-Identifier: Apache-2.0
"""Where a plan that is not native as a whole is cut: pure functions on small plans."""

from __future__ import annotations

from volley.plan.expressions import AggregateCall, AggregateMode, Attribute, Call, SortKey
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Limit,
    Node,
    Partitioning,
    Sort,
    Unknown,
    walk,
)
from volley.plan.types import LONG
from volley.support.reasons import Reason, Unsupported
from volley.support.split import cut_off, subplans

A, B, STATE, TOTAL = (
    Attribute(number, name, LONG) for number, name in enumerate(("a", "b", "state", "total"))
)
SCAN = FileScan("parquet", (), (A,), (), ())
FOREIGN = Unknown("BatchEvalPythonExec", "", (B,), ())


def joined(left: Node, right: Node) -> Join:
    return Join(JoinKind.INNER, (left.output[0],), (right.output[0],), None, BuildSide.RIGHT, left, right)


def pair(child: Node) -> Aggregate:
    """Both halves of a sum, with Spark's exchange between them."""
    total = Call("Sum", (child.output[0],), LONG)
    first = AggregateCall(total, AggregateMode.PARTIAL, False, None, TOTAL.id)
    second = AggregateCall(total, AggregateMode.FINAL, False, None, TOTAL.id)
    partial = Aggregate((), (first,), (STATE,), (STATE,), child)
    return Aggregate((), (second,), (TOTAL,), (TOTAL,), Exchange(Partitioning.SINGLE, 1, (), (), partial))


def anywhere(node: Node) -> bool:
    return True


def test_the_lowest_foreign_node_is_cut_off() -> None:
    plan = pair(joined(SCAN, FOREIGN))
    assert cut_off(plan, anywhere) == (FOREIGN,)


def test_a_cut_goes_up_to_where_spark_can_be_asked() -> None:
    above = Filter(Call("IsNotNull", (B,), LONG), FOREIGN)
    plan = pair(joined(SCAN, above))
    assert cut_off(plan, lambda node: node is above) == (above,)


def test_nothing_native_above() -> None:
    assert cut_off(FOREIGN, anywhere) is None
    assert cut_off(pair(joined(SCAN, FOREIGN)), lambda node: False) is None


def test_an_island_must_be_worth_it() -> None:
    small = cut_off(pair(FOREIGN), anywhere)
    assert isinstance(small, Unsupported)
    assert small.reason is Reason.MIXED
    assert cut_off(pair(pair(FOREIGN)), anywhere) == (FOREIGN,)


def test_halves_of_an_aggregate_stay_together() -> None:
    """Spark can be asked for the upper half, or for the lower one, whose state would mean nothing here."""
    plan = pair(joined(SCAN, pair(FOREIGN)))
    upper = next(node for node in walk(plan) if isinstance(node, Join)).right
    (lower,) = (node for node in walk(upper) if isinstance(node, Aggregate) and node is not upper)
    cut = cut_off(plan, lambda node: node is upper or node is lower)
    assert isinstance(cut, tuple)
    assert [node is upper for node in cut] == [True]


def test_an_order_is_not_cut_off() -> None:
    ordered = Limit(5, 0, True, Sort((SortKey(B, True, True),), True, FOREIGN))
    assert cut_off(pair(joined(SCAN, ordered)), lambda node: node is ordered) is None


def udf(child: Node) -> Unknown:
    return Unknown("BatchEvalPythonExec", "", (*child.output, B), (child,))


def test_the_largest_native_parts_below_spark() -> None:
    other, another = (FileScan("parquet", (), (Attribute(id, "c", LONG),), (), ()) for id in (10, 11))
    left, right = pair(SCAN), joined(other, Limit(3, 0, True, another))
    assert subplans(udf(left), anywhere) == (left,)
    assert subplans(udf(joined(left, udf(right))), anywhere) == (left, right)
    assert subplans(udf(pair(right)), lambda node: isinstance(node, Join)) == (right,)


def test_nothing_native_below() -> None:
    assert subplans(udf(FOREIGN), anywhere) is None
    assert subplans(udf(pair(SCAN)), lambda node: False) is None


def test_small_islands_stay_with_spark() -> None:
    small = subplans(udf(SCAN), anywhere)
    assert isinstance(small, Unsupported)
    assert small.reason is Reason.MIXED


def test_joins_that_would_hand_over_all_rows_stay_with_spark() -> None:
    other = FileScan("parquet", (), (B,), (), ())
    whole = subplans(udf(joined(SCAN, other)), anywhere)
    assert isinstance(whole, Unsupported)
    assert whole.reason is Reason.MIXED
    assert "cross" in whole.detail
    few = joined(SCAN, Limit(3, 0, True, other))
    assert subplans(udf(few), anywhere) == (few,)


def test_an_order_stays_with_spark() -> None:
    """The rows of a sort would come in another order; what is below it may come in any."""
    below = pair(SCAN)
    in_order = Sort((SortKey(TOTAL, True, True),), True, below)
    assert subplans(udf(in_order), anywhere) == (below,)


def test_whoever_sees_how_rows_are_spread_reads_spark_alone() -> None:
    """An aggregate of Spark's own, and an operator that is given rows by the task."""
    sketch = Call("HllSketchAgg", (TOTAL,), LONG)
    call = AggregateCall(sketch, AggregateMode.PARTIAL, False, None, TOTAL.id)
    below = pair(SCAN)
    assert subplans(Aggregate((), (call,), (STATE,), (STATE,), below), anywhere) is None
    assert subplans(Unknown("MapInArrowExec", "", (B,), (below,)), anywhere) is None
