# SPDX-License-Identifier: Apache-2.0
"""Rows that need no columns keep their number: in batches, and in every plan."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volley
from volley.batches import empty_batch, make_batch, rows_without_columns, table_without_columns
from volley.bridge.result import NativeResult
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Frame,
    Literal,
    SortKey,
    WindowCall,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Generate,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    MaterializedInput,
    Node,
    OneRow,
    Partitioning,
    Project,
    Range,
    Sort,
    StageInput,
    TopN,
    Union,
    Window,
    walk,
)
from volley.plan.types import BOOLEAN, LONG
from volley.stages.cut import make_stages
from volley.stages.row_counts import RowCounts
from volley.testing.limits import DISTRIBUTED

TRUE = Literal(True, BOOLEAN)
ONE = Literal(1, LONG)
KEY = SortKey(ONE, ascending=True, nulls_first=True)
EVERYTHING = Frame(True, None, None)


def test_a_batch_has_the_rows_that_it_was_told() -> None:
    numbers = pa.record_batch({"n": [1, 2, 3]})
    assert make_batch(numbers.columns, numbers.schema, 3).equals(numbers)
    assert make_batch([], pa.schema([]), 3).num_rows == 3
    assert table_without_columns(3).num_rows == 3
    assert (empty_batch(numbers.schema).num_rows, empty_batch(pa.schema([])).num_rows) == (0, 0)


def test_batches_are_made_in_one_place() -> None:
    """`from_arrays` and `concat_tables` take the number of rows from the columns, so nothing else calls them."""
    root = Path(volley.__file__).parent
    # A batch of columns that the code itself names always has some, and arrays of lists and structs are none.
    own = {
        "batches.py",
        "bridge/map_order.py",
        "bridge/result.py",
        "bridge/rows.py",
        "formats/avro_values.py",
        "formats/ranges.py",
        "formats/stored_columns.py",
        "frame_cache/cached_batches.py",
        "jvm/signature.py",
        "lower/functions/array_sets.py",
        "lower/functions/array_texts.py",
        "lower/functions/arrays.py",
        "lower/functions/lists.py",
        "lower/functions/regexes.py",
        "lower/functions/strings.py",
        "lower/list_aggregate_programs.py",
        "lower/functions/maps.py",
        "lower/functions/structs.py",
        "lower/list_aggregate_statistics.py",
        "lower/list_aggregate_values.py",
        "lower/generate.py",
        "lower/grouped_values.py",
        "lower/sliding_frames.py",
        "rpc/handshake.py",
        "sources/schema_evolution.py",
        "worker/python/batching.py",
        "worker/python/pickled.py",
        "worker/python/row_functions.py",
        "worker/python/tables.py",
    }
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("from_arrays", "concat_tables", "concat_arrays")
        if "bench" not in path.parts and "testing" not in path.parts
    }
    assert callers == own


@pytest.mark.parametrize("carried", [rows_without_columns(5), pa.record_batch({"row": [True] * 5})])
def test_a_result_without_columns_has_all_its_rows(carried: pa.RecordBatch) -> None:
    def result() -> NativeResult:
        return NativeResult(iter([carried, carried]), ())

    assert (result().table().num_rows, result().table().num_columns) == (10, 0)
    assert [result().last_rows(count).num_rows for count in (0, 3, 7, 20)] == [0, 3, 7, 10]
    assert result().named(carried).num_rows == 5


class _Ids:
    def __init__(self) -> None:
        self._last = 0

    def column(self) -> Attribute:
        self._last += 1
        return Attribute(self._last, f"a{self._last}", LONG)


@st.composite
def leaves(draw: st.DrawFn, ids: _Ids) -> Node:
    output = tuple(ids.column() for _ in range(draw(st.integers(0, 2))))
    match draw(st.sampled_from(["file", "local", "one", "range", "held", "input"])):
        case "file":
            return FileScan("parquet", (), (), output, ())
        case "local":
            return LocalRows(output, b"")
        case "range":
            return Range(0, 9, 1, (ids.column(),))
        case "held":
            return MaterializedInput(0, 1, 1, output)
        case "input":
            return StageInput(0, output)
        case _:
            return OneRow()


@st.composite
def plans(draw: st.DrawFn, ids: _Ids, depth: int) -> Node:
    if depth == 0:
        return draw(leaves(ids))
    child = draw(plans(ids, depth - 1))
    made = tuple(Alias(ids.column().id, "x", ONE) for _ in range(draw(st.integers(0, 1))))
    kept = tuple(a for a in child.output if draw(st.booleans()))
    match draw(
        st.sampled_from(
            ["project", "filter", "sort", "limit", "top", "group", "window", "generate"] + ["two"] * 5
        )
    ):
        case "project":
            return Project(kept + made, child)
        case "filter":
            return Filter(TRUE, child)
        case "sort":
            return Sort((KEY,), True, child)
        case "limit":
            return Limit(3, 0, True, child)
        case "top":
            return TopN(3, 0, (KEY,), kept, child)
        case "group":
            return Aggregate(kept, (), (), kept[:1], child)
        case "generate":
            return Generate("Stack", (ONE, ONE), kept, False, (ids.column(),), child)
        case "window":
            count = AggregateCall(
                Call("Count", (ONE,), LONG), AggregateMode.COMPLETE, distinct=False, filter=None, result_id=0
            )
            return Window((Alias(ids.column().id, "w", WindowCall(count, (), (), EVERYTHING)),), child)
        case _:
            return draw(_binary(ids, depth, child))


@st.composite
def _binary(draw: st.DrawFn, ids: _Ids, depth: int, child: Node) -> Node:
    other = draw(plans(ids, depth - 1))
    match draw(st.sampled_from(["join", "exchange", "expand", "union"])):
        case "join":
            kind = draw(st.sampled_from(list(JoinKind)))
            exists = ids.column() if kind is JoinKind.EXISTENCE else None
            return _join(kind, exists, child, other)
        case "exchange":
            return Exchange(draw(st.sampled_from(list(Partitioning))), 3, (), (), child)
        case "expand":
            output = tuple(ids.column() for _ in range(draw(st.integers(0, 1))))
            return Expand(((ONE,) * len(output),) * 2, output, child)
        case _:
            width = min(len(child.output), len(other.output))
            output = tuple(ids.column() for _ in range(width))
            return Union(output, tuple(Project(one.output[:width], one) for one in (child, other)))


def _join(kind: JoinKind, exists: Attribute | None, left: Node, right: Node) -> Join:
    return Join(kind, (), (), None, None, left, right, exists=exists)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_only_leaves_have_no_columns(data: st.DataObject) -> None:
    plan = data.draw(plans(_Ids(), data.draw(st.integers(0, 3))))
    counted = RowCounts().keep(plan)
    assert counted.output == plan.output if plan.output else len(counted.output) == 1
    covered = {id(node.child) for node in walk(counted) if isinstance(node, Project) and node.output}
    for node in walk(counted):
        assert node.output or (not node.children and id(node) in covered), node
    joins = [node for node in walk(counted) if isinstance(node, Join)]
    assert all(not {a.id for a in j.left.output} & {a.id for a in j.right.output} for j in joins)


@pytest.mark.parametrize("workers", [1, 3])
def test_no_stage_gives_rows_without_columns(workers: int) -> None:
    rows = LocalRows((), b"")
    join = _join(JoinKind.INNER, None, rows, Exchange(Partitioning.BROADCAST, 1, (), (), rows))
    spread = Exchange(Partitioning.ROUND_ROBIN, 3, (), (), Union((), (join, rows)))
    for plan in (spread, Limit(2, 0, True, Exchange(Partitioning.SINGLE, 1, (), (), spread))):
        graph = make_stages(plan, workers, DISTRIBUTED)
        assert all(stage.plan.output for stage in graph.stages)
        assert all(node.output for stage in graph.stages for node in stage.inputs)


def test_a_plan_that_has_columns_everywhere_stays_as_it_is() -> None:
    plan = Sort((KEY,), True, Filter(TRUE, Range(0, 9, 1, (Attribute(1, "id", LONG),))))
    assert RowCounts().keep(plan) is plan


def test_a_window_of_which_spark_left_constants_is_one_of_all_rows() -> None:
    """Spark replaces `count(NULL) OVER (PARTITION BY a)` with 0 and keeps the operator."""
    constant = Alias(1, "w", Literal(0, LONG))
    rows = Range(0, 9, 1, (Attribute(2, "id", LONG),))
    graph = make_stages(Window((constant,), rows), 3, DISTRIBUTED)
    assert graph.result.plan == Window((constant,), rows)
