# SPDX-License-Identifier: Apache-2.0
"""The order in which DataFusion evaluates the conditions of a filter changes no row, and hides no error."""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import DataFrame
from hypothesis import given
from hypothesis import strategies as st

from volley.lower.filter_order import is_together, order_conditions
from volley.lower.operators import lower
from volley.lower.plan_cache import drop_plans
from volley.lower.scope import Streamed
from volley.lower.sessions import planning_context
from volley.lower.streams import StreamTable
from volley.plan.builders import both, compare
from volley.plan.expressions import Attribute, Call, EvalMode, Expression, Literal, conjuncts
from volley.plan.nodes import CachedRows, DataFile, FileScan, Filter, Limit, Node
from volley.plan.types import BOOLEAN, DATE, INTEGER, STRING, DecimalType, to_arrow

SHIPPED, RECEIVED = Attribute(1, "shipped", DATE), Attribute(2, "received", DATE)
MODE, COUNT = Attribute(3, "mode", STRING), Attribute(4, "count", INTEGER)
PRICE = Attribute(5, "price", DecimalType(15, 2))
COLUMNS = (SHIPPED, RECEIVED, MODE, COUNT, PRICE)
Row = tuple[datetime.date | None, datetime.date | None, str | None, int | None, Decimal | None]

EPOCH, START, END = datetime.date(1970, 1, 1), datetime.date(1994, 1, 1), datetime.date(1995, 1, 1)
BY_MODE = Call("In", (MODE, Literal("MAIL", STRING), Literal("SHIP", STRING)), BOOLEAN)
IN_TIME = compare("LessThan", SHIPPED, RECEIVED)
FROM = compare("GreaterThanOrEqual", RECEIVED, Literal((START - EPOCH).days, DATE))
TO = compare("LessThan", RECEIVED, Literal((END - EPOCH).days, DATE))
CHEAP = compare("LessThan", PRICE, Literal(Decimal(3), PRICE.type))
QUOTIENT = Call("IntegralDivide", (Literal(6, INTEGER), COUNT), INTEGER, EvalMode.ANSI)
ONE = compare("EqualTo", COUNT, Literal(1, INTEGER))
MAY_FAIL = compare("GreaterThan", QUOTIENT, Literal(1, INTEGER))


@pytest.fixture(autouse=True)
def without_frames() -> Iterator[None]:
    drop_plans()
    yield
    drop_plans()


def scan_of(rows: Sequence[Row], path: Path) -> FileScan:
    pq.write_table(table_of(rows), path, row_group_size=10)
    return FileScan("parquet", (DataFile(str(path), path.stat().st_size, 0),), COLUMNS, (), ())


def table_of(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays = [
        pa.array(column, to_arrow(attribute.type)) for column, attribute in zip(columns, COLUMNS, strict=True)
    ]
    return pa.Table.from_arrays(arrays, [attribute.name for attribute in COLUMNS])


NOTHING = CachedRows(COLUMNS, "", tuple(range(len(COLUMNS))), (), True)


def ordered(*asked: Expression, child: Node = NOTHING) -> list[Expression | list[Expression]]:
    """The conditions, with those that are one for DataFusion in a list."""
    plan = order_conditions(Filter(reduce(both, asked), child))
    assert isinstance(plan, Filter)
    return list(_parts(plan.condition))


def _parts(condition: Expression) -> Iterator[Expression | list[Expression]]:
    if not isinstance(condition, Call) or condition.function != "And":
        yield condition
    elif is_together(condition):
        yield list(conjuncts(condition))
    else:
        for part in condition.arguments:
            yield from _parts(part)


def test_what_leaves_least_for_its_cost_comes_first() -> None:
    assert ordered(BY_MODE, IN_TIME, CHEAP, FROM, TO) == [[FROM, TO, CHEAP, IN_TIME], BY_MODE]


def test_where_nothing_would_be_copied_for_a_cheap_condition_none_is_hidden() -> None:
    assert ordered(BY_MODE, FROM, TO) == [FROM, TO, BY_MODE]
    assert ordered(CHEAP, IN_TIME) == [CHEAP, IN_TIME]


def test_a_condition_that_leaves_little_is_not_among_the_cheap_ones() -> None:
    """As the left side of an AND it would have rows copied."""
    assert ordered(ONE, IN_TIME, CHEAP) == [[CHEAP, IN_TIME], ONE]


def test_each_left_side_is_a_single_condition() -> None:
    plan = order_conditions(Filter(reduce(both, (BY_MODE, IN_TIME, CHEAP, FROM, TO)), NOTHING))
    assert isinstance(plan, Filter)
    assert isinstance(plan.condition, Call)
    condition, _ = plan.condition.arguments
    expected = both(FROM, both(TO, both(CHEAP, IN_TIME)))
    assert isinstance(condition, Call)
    assert isinstance(expected, Call)
    assert condition.arguments == expected.arguments


def test_nothing_passes_a_condition_that_may_fail() -> None:
    assert ordered(BY_MODE, CHEAP, MAY_FAIL, FROM, TO) == [CHEAP, BY_MODE, MAY_FAIL, FROM, TO]


def test_only_filters_of_stored_rows_are_changed() -> None:
    plan = Filter(both(BY_MODE, CHEAP), Limit(5, 0, True, NOTHING))
    assert order_conditions(plan) is plan


@contextmanager
def lowered(scan: FileScan, asked: Sequence[Expression]) -> Iterator[DataFrame]:
    def inputs(read: Streamed) -> StreamTable:
        raise AssertionError

    with ExitStack() as resources:
        yield lower(Filter(reduce(both, asked), scan), planning_context(1), inputs, resources)


ROW = (datetime.date(1994, 2, 1), datetime.date(1994, 3, 1), "MAIL", 1)


def test_datafusion_keeps_the_order_and_still_skips_row_groups(tmp_path: Path) -> None:
    """Its optimizer would sort these conditions by column if it looked into all of them."""
    scan = scan_of([(*ROW, Decimal(number)) for number in range(100)], tmp_path / "a.parquet")
    with lowered(scan, [BY_MODE, IN_TIME, CHEAP, FROM, TO]) as frame:
        plan = frame.execution_plan().display_indent()
        assert frame.count() == 3
    (operator,) = (line.strip() for line in plan.splitlines() if "FilterExec" in line)
    assert operator.startswith(
        "FilterExec: (__common_expr_1@0 AND received@2 < 1995-01-01 AND "
        "price@5 < 3.00 AND received@2 > shipped@1) >= true AND (mode@3 = MAIL OR mode@3 = SHIP) AND "
        "__common_expr_1@0 AND received@2 < 1995-01-01 AND price@5 < 3.00"
    )
    pruning = plan.partition("pruning_predicate=")[2]
    assert {"mode_min@", "received_max@", "received_min@", "price_min@"} <= {*re.findall(r"\w+@", pruning)}


DAYS = st.none() | st.dates(datetime.date(1993, 11, 1), datetime.date(1995, 2, 1))
MODES = st.sampled_from([None, "MAIL", "SHIP", ""])
PRICES = st.none() | st.integers(0, 5).map(Decimal)
TABLES = st.lists(st.tuples(DAYS, DAYS, MODES, st.none() | st.integers(1, 4), PRICES), max_size=40)

HOLDS: dict[Expression, Callable[[Any, Any, Any, Any, Any], bool]] = {
    BY_MODE: lambda shipped, received, mode, count, price: mode in ("MAIL", "SHIP"),
    IN_TIME: lambda shipped, received, mode, count, price: bool(shipped and received and shipped < received),
    CHEAP: lambda shipped, received, mode, count, price: price is not None and price < 3,
    FROM: lambda shipped, received, mode, count, price: bool(received and received >= START),
    TO: lambda shipped, received, mode, count, price: bool(received and received < END),
    ONE: lambda shipped, received, mode, count, price: count == 1,
    MAY_FAIL: lambda shipped, received, mode, count, price: count is not None and 6 // count > 1,
}


@given(TABLES, st.permutations([*HOLDS]), st.integers(2, 7))
def test_the_same_rows_are_left(rows: list[Row], asked: list[Expression], count: int) -> None:
    chosen = asked[:count]
    with (
        tempfile.TemporaryDirectory() as folder,
        lowered(scan_of(rows, Path(folder) / "a.parquet"), chosen) as frame,
    ):
        found = [tuple(row.values()) for row in frame.to_arrow_table().to_pylist()]
    assert found == [row for row in rows if all(HOLDS[part](*row) for part in chosen)]
