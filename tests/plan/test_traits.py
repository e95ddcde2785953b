# SPDX-License-Identifier: Apache-2.0
"""Every operator has a row in the table of traits, and what the rows claim of joins and others is what they do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from operator import itemgetter
from typing import Any, get_args

import pyarrow as pa
import pytest

from helpers.adaptive_plans import run
from volley.plan import nodes
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    walk,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    Node,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Unknown,
    Window,
    with_children,
)
from volley.plan.traits import TRAITS, Traits, below_row_by_row, traits_of
from volley.plan.types import BOOLEAN, INTEGER, LONG
from volley.testing.limits import DISTRIBUTED

K, V = Attribute(1, "k", LONG), Attribute(2, "v", LONG)
FK, FW = Attribute(3, "k", LONG), Attribute(4, "w", LONG)
LESS = Call("LessThan", (V, Literal(60, LONG)), BOOLEAN)

CLASSES = get_args(Node)


def test_every_operator_has_a_row() -> None:
    assert set(TRAITS) == set(CLASSES)


def test_every_class_of_a_node_is_known_as_one() -> None:
    """A node that is not in `Node` would be in no table, and no test would miss it."""
    found = {
        value
        for value in vars(nodes).values()
        if isinstance(value, type) and is_dataclass(value) and hasattr(value, "children")
    }
    assert found == set(CLASSES)


def test_what_nobody_described_gets_the_safe_answers() -> None:
    @dataclass(frozen=True)
    class Sample:
        fraction: Expression
        child: Node

        children = ()

    found = traits_of(Sample(V, rows_of(K, V)))  # type: ignore[arg-type]
    assert found == Traits(evaluates=(V,))
    assert (found.together, found.divisible) == ((), frozenset())
    assert found.needs_order
    assert not any((found.repeatable, found.row_by_row, found.keeps_order))
    assert traits_of(Unknown("SampleExec", "", (K,), ())).repeatable is False


# ----------------------------------------------------------------------------------------- expressions

MARK = Attribute(77, "mark", LONG)
KEY = SortKey(MARK, True, True)
COUNT = AggregateCall(Call("Count", (MARK,), LONG), AggregateMode.COMPLETE, False, None, 9)
OVER = WindowCall(Call("RowNumber", (), LONG), (MARK,), (KEY,), Frame(True, None, None))
MARKED: dict[str, Any] = {
    "Expression": MARK,
    "Expression | None": MARK,
    "tuple[Expression, ...]": (MARK,),
    "tuple[tuple[Expression, ...], ...]": ((MARK,),),
    "tuple[SortKey, ...]": (KEY,),
    "tuple[AggregateCall, ...]": (COUNT,),
    "tuple[Alias, ...]": (Alias(78, "a", OVER),),
}
# What a scan only prunes by; an order that an input already has.
NOT_EVALUATED = {
    ("FileScan", "filters"),
    ("SourceScan", "filters"),
    ("StageInput", "sorted_by"),
    ("CachedRows", "order"),
    # Calls of the functions that it has for them, and of no other.
    ("PartitionedRows", "values"),
}


def expression_fields() -> Iterator[tuple[type[Any], str]]:
    for kind in CLASSES:
        for field in fields(kind):
            is_expression = any(word in str(field.type) for word in ("Expression", "Key", "Call", "Alias"))
            if is_expression and (kind.__name__, field.name) not in NOT_EVALUATED:
                yield kind, field.name


@pytest.mark.parametrize(("kind", "name"), list(expression_fields()))
def test_what_a_node_computes_is_checked(kind: type[Any], name: str) -> None:
    """An expression that the table leaves out would never be asked whether it is exact."""
    values = {field.name: MARKED.get(str(field.type), ()) for field in fields(kind)}
    for other in values:
        if other != name and kind is not Window:
            values[other] = None if values[other] is MARK else ()
    found = traits_of(kind(**values)).evaluates
    assert any(part == MARK for expression in found for part in walk(expression))


# -------------------------------------------------------------------------------- what they claim, they do


def local_rows(output: tuple[Attribute, ...], rows: list[tuple[int | None, ...]]) -> LocalRows:
    columns = [pa.array([row[place] for row in rows], pa.int64()) for place in range(len(output))]
    table = pa.table(columns, names=[f"c{column.id}" for column in output])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return LocalRows(output, sink.getvalue().to_pybytes())


def random_rows(seed: int, count: int = 40) -> list[tuple[int | None, ...]]:
    chance = random.Random(seed)
    return [(chance.choice([None, *range(12)]), chance.randrange(100)) for _ in range(count)]


def rows_of(*output: Attribute, seed: int = 1) -> LocalRows:
    return local_rows(output, random_rows(seed))


def computed(plan: Node) -> list[tuple[object, ...]]:
    return run(plan, 1, DISTRIBUTED)[0]


def join(kind: JoinKind) -> Join:
    exists = Attribute(5, "e", BOOLEAN) if kind is JoinKind.EXISTENCE else None
    return Join(kind, (K,), (FK,), None, None, rows_of(K, V), rows_of(FK, FW, seed=2), exists=exists)


def aggregate(function: str) -> Aggregate:
    result = Attribute(20, "r", LONG)
    call = AggregateCall(Call(function, (V,), LONG), AggregateMode.COMPLETE, False, None, 20)
    return Aggregate((K,), (call,), (result,), (K, result), rows_of(K, V))


SAMPLES: dict[str, Node] = {
    "project": Project((K, Alias(9, "d", Call("Add", (V, V), LONG))), rows_of(K, V)),
    "filter": Filter(LESS, rows_of(K, V)),
    "expand": Expand(((K, V), (V, K)), (FK, FW), rows_of(K, V)),
    "generate": Generate("Stack", (Literal(2, INTEGER), V, K), (K,), False, (FW,), rows_of(K, V)),
    "sort": Sort((SortKey(V, True, True),), False, rows_of(K, V)),
    "sum": aggregate("Sum"),
    "max": aggregate("Max"),
    "union": Union((K, V), (rows_of(K, V), rows_of(FK, FW, seed=2))),
    "exchange": Exchange(Partitioning.HASH, 3, (K,), (), rows_of(K, V)),
    **{f"{kind} join": join(kind) for kind in JoinKind},
}


def with_rows(node: Node, place: int, change: Callable[[list[Any]], list[Any]]) -> Node:
    """The node over some of the rows of one child, or over all of them in another order."""
    seed = place + 1
    children = list(node.children)
    children[place] = local_rows(children[place].output, change(random_rows(seed)))
    return with_children(node, tuple(children))


@pytest.mark.parametrize("name", [name for name, node in SAMPLES.items() if not isinstance(node, Exchange)])
def test_shares_of_a_child_give_its_rows_just_where_that_is_said(name: str) -> None:
    node = SAMPLES[name]
    for place in range(len(node.children)):
        shares = [with_rows(node, place, itemgetter(slice(part, None, 3))) for part in range(3)]
        together = sorted((row for share in shares for row in computed(share)), key=repr)
        assert (together == computed(node)) == (place in traits_of(node).divisible), place


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_repeatable_gives_the_same_rows_in_any_order(name: str) -> None:
    node = SAMPLES[name]
    assert traits_of(node).repeatable
    for place in range(len(node.children)):
        assert computed(with_rows(node, place, lambda rows: rows[::-1])) == computed(node)


@pytest.mark.parametrize("name", [name for name, node in SAMPLES.items() if traits_of(node).row_by_row])
def test_row_by_row(name: str) -> None:
    node = SAMPLES[name]
    rows = len(random_rows(1))
    alone = [with_rows(node, 0, itemgetter(slice(place, place + 1))) for place in range(rows)]
    single = [row for one in alone for row in computed(one)]
    assert sorted(single, key=repr) == computed(node)


@pytest.mark.parametrize("name", [name for name, node in SAMPLES.items() if len(node.children) == 1])
def test_carried_columns_treat_rows_apart(name: str) -> None:
    """To leave rows out below is to leave out the rows above that have these values."""
    node = SAMPLES[name]
    (child,) = node.children
    for id, below in traits_of(node).carries().items():
        above = next(column for column in node.output if column.id == id)
        bound = Literal(5, LONG)
        early = with_children(node, (Filter(Call("LessThan", (below, bound), BOOLEAN), child),))
        assert computed(Filter(Call("LessThan", (above, bound), BOOLEAN), node)) == computed(early)


# ------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize(
    ("node", "repeatable"),
    [
        (Limit(3, 0, True, rows_of(K, V)), False),
        (TopN(3, 0, (SortKey(V, True, True),), (K, V), rows_of(K, V)), False),
        (Window((Alias(9, "n", OVER),), rows_of(K, V)), False),
        (aggregate("First"), False),
    ],
)
def test_which_of_several_rows_is_not_repeatable(node: Node, repeatable: bool) -> None:
    assert traits_of(node).repeatable is repeatable
    assert traits_of(node).carries() == {} or isinstance(node, Aggregate)


def test_below_filters_and_projections() -> None:
    scan = rows_of(K, V)
    assert below_row_by_row(Project((K,), Filter(LESS, scan))) is scan
    limit = Limit(3, 0, True, scan)
    assert below_row_by_row(Filter(LESS, limit)) is limit
