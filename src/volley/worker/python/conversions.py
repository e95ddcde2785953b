# SPDX-License-Identifier: Apache-2.0
"""For each kind of Python operator: what it sends to a worker, and how results become rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from volley.batches import empty_batch, make_batch
from volley.errors import DataError
from volley.lower.scope import arrow_schema, distinct
from volley.plan import synthetic_ids
from volley.plan.expressions import Alias, Attribute, Expression, SortKey
from volley.plan.nodes import (
    Node,
    Project,
    Sort,
)
from volley.plan.python_nodes import (
    EvalType,
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonNode,
    PythonProgram,
    PythonTable,
    PythonWindow,
    RowFrame,
)
from volley.plan.types import DataType, StructField, to_arrow
from volley.worker.python.batching import (
    Alignment,
    arguments_of,
    cut,
    rows_of,
)
from volley.worker.python.groups import Group, add_bounds
from volley.worker.python.pickled import RowPickler, can_send_arrow, read_results, send_arrow
from volley.worker.python.program_run import Outgoing
from volley.worker.python.protocol import END_OF_DATA
from volley.worker.python.sending import Sender, allow_large_batches
from volley.worker.python.tables import PickledTableRows, TableRows


class Conversion(Protocol):
    """One stream of rows, or of groups of rows. One thread calls `send`, another one `receive` and `finish`."""

    def send(self, items: Iterable[Any], out: Outgoing) -> None:
        """Send all rows of the plan below: batches, or groups of them."""

    def receive(self, results: Any) -> Iterator[pa.RecordBatch]:
        """The rows of the operator that these results, a batch or a pickle, complete."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """The remaining rows, after the last result. Raises DataError if results are missing."""


@dataclass(frozen=True)
class Converted:
    """An operator, ready to run: the plan below it, its program, and a conversion for each stream of rows.

    `groups` are the columns of the plan by which rows are grouped; None: they are not. `single`: there is one stream.
    `needs_rows`: functions are not called if there are none.
    """

    plan: Node
    program: PythonProgram
    schema: pa.Schema
    conversion: Callable[[], Conversion]
    groups: tuple[int, ...] | None = None
    single: bool = False
    needs_rows: bool = True


def convert(node: PythonNode) -> Converted:
    schema = arrow_schema(node.output)
    plan = _Inputs(node.child)
    columns = plan.places(node.arguments)
    conversion: Callable[[], Conversion]
    match node:
        case PythonEval(program, _, _, child):
            kept = list(range(len(distinct(child.output))))
            types = _types(node.results)
            if program.eval_type is EvalType.BATCHED and can_send_arrow(program, types):
                program = allow_large_batches(send_arrow(program))
            elif program.eval_type is EvalType.BATCHED:
                conversion = partial(_PickledEval, program, columns, kept, schema, types)
                return Converted(plan.node, program, schema, conversion)
            elif program.eval_type is EvalType.ARROW_BATCHED:
                program = allow_large_batches(program)
            conversion = partial(_Eval, program, columns, kept, schema, types)
            return Converted(plan.node, program, schema, conversion)
        case PythonMap(program, _, _, single, _):
            conversion = partial(_Map, program, columns, schema, node.output)
            return Converted(plan.node, program, schema, conversion, single=single, needs_rows=False)
        case PythonGroupMap(program, grouping, _, _, _):
            keys = plan.places(grouping)
            conversion = partial(_GroupMap, program, columns, schema, node.output)
            return Converted(plan.sorted(grouping), program, schema, conversion, tuple(keys))
        case PythonCoGroupMap(program, right_columns, grouping, side, left, _, _, _):
            keys = plan.places(grouping)
            below = plan.sorted(grouping, (SortKey(side, ascending=True, nulls_first=True),))
            places, middle = columns[0], 1 + len(left)
            sides = (columns[1:middle], columns[middle:])
            conversion = partial(_CoGroupMap, program, right_columns, places, sides, schema, node.output)
            return Converted(below, program, schema, conversion, tuple(keys))
        case PythonAggregate(program, grouping, _, _, _):
            keys = plan.places(grouping)
            conversion = partial(_Aggregate, program, columns, keys, schema, _types(node.results))
            below = plan.sorted(grouping)
            # Spark defines the result of an aggregate over no rows.
            return Converted(below, program, schema, conversion, tuple(keys), not keys, bool(keys))
        case PythonWindow(program, grouping, order, row_frames, _, _, kept_columns, _):
            keys = plan.places(grouping)
            kept = plan.places(distinct(kept_columns))
            below = plan.sorted(grouping, order)
            width = len(below.output)
            bounds = range(width, width + 2 * len(row_frames))
            types = _types(node.results)
            conversion = partial(_Window, program, row_frames, [*bounds, *columns], kept, schema, types)
            return Converted(below, program, schema, conversion, tuple(keys))
        case PythonTable(program, grouping, order, _, required, results, single, _):
            keys = plan.places(grouping)
            kept = plan.places(distinct(required))
            kind = PickledTableRows if program.eval_type is EvalType.TABLE else TableRows
            conversion = partial(kind, program, columns, kept, schema, results, grouped=bool(keys))
            below = plan.sorted(grouping, order)
            groups = tuple(keys) if keys else None
            return Converted(below, program, schema, conversion, groups, single, needs_rows=not single)


class _Inputs:
    """The plan below an operator: the child's columns, then those that are computed for the operator."""

    def __init__(self, child: Node) -> None:
        self._child = child
        self._columns: list[Expression] = list(distinct(child.output))
        self._places = {column.id: place for place, column in enumerate(distinct(child.output))}

    @property
    def node(self) -> Node:
        return Project(tuple(self._columns), self._child)

    def places(self, expressions: Sequence[Expression]) -> list[int]:
        """The positions of these expressions among the columns."""
        return [self._place(expression) for expression in expressions]

    def sorted(self, grouping: Sequence[Expression], order: Sequence[SortKey] = ()) -> Node:
        """The plan with the rows of each group adjacent, in `order`."""
        keys = (*(SortKey(_value(key), ascending=True, nulls_first=True) for key in grouping), *order)
        return (
            Project(tuple(self._columns), Sort(keys, whole=False, child=self._child)) if keys else self.node
        )

    def _place(self, expression: Expression) -> int:
        value = _value(expression)
        if isinstance(value, Attribute):
            return self._places[value.id]
        self._columns.append(Alias(synthetic_ids.PYTHON_ARGUMENT + len(self._columns), "argument", value))
        return len(self._columns) - 1


def _value(expression: Expression) -> Expression:
    return expression.child if isinstance(expression, Alias) else expression


def _types(results: Sequence[Attribute]) -> list[DataType]:
    return [attribute.type for attribute in results]


def _nothing(group: Group) -> None:
    pass


class _Eval:
    """Functions of rows: each result is a column beside its row."""

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        types: Sequence[DataType],
    ) -> None:
        self._sender = Sender(program, columns)
        self._alignment = Alignment(kept, schema, types)

    def send(self, items: Iterable[pa.RecordBatch], out: Outgoing) -> None:
        out.stream(self._sender.schema, self._sender.batches(items, self._alignment.add))

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._alignment.match(results)

    def finish(self) -> tuple[()]:
        self._alignment.finish()
        return ()


# Functions cannot observe the size of a batch.
_PICKLED_ROWS = 2000


class _PickledEval:
    """Functions of rows that are pickled."""

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        types: Sequence[DataType],
    ) -> None:
        self._columns = columns
        self._schema = pa.schema([pa.field(field.name, to_arrow(field.type)) for field in program.columns])
        self._pickler = RowPickler.of(program)
        self._types = types
        self._alignment = Alignment(kept, schema, types)

    def send(self, items: Iterable[pa.RecordBatch], out: Outgoing) -> None:
        for group in cut(items, _PICKLED_ROWS):
            self._alignment.add(group)
            out.block(self._pickler.pickle(arguments_of(group, self._columns, self._schema)))
        out.integer(END_OF_DATA)

    def receive(self, results: bytes) -> Iterator[pa.RecordBatch]:
        return self._alignment.match(read_results(results, self._types))

    def finish(self) -> tuple[()]:
        self._alignment.finish()
        return ()


class _Map:
    """A function from all batches of a stream to other batches."""

    def __init__(
        self, program: PythonProgram, columns: Sequence[int], schema: pa.Schema, results: Sequence[Attribute]
    ) -> None:
        self._sender = Sender(program, columns)
        self._schema = schema
        self._results = results

    def send(self, items: Iterable[pa.RecordBatch], out: Outgoing) -> None:
        out.stream(self._sender.schema, self._sender.batches(items))

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows are in a column of structs."""
        (wrapped,) = results.columns
        yield make_batch(rows_of(wrapped, self._results), self._schema, results.num_rows)

    def finish(self) -> tuple[()]:
        """It may yield as many rows as it likes."""
        return ()


class _GroupMap(_Map):
    """A function of a whole group."""

    def send(self, items: Iterable[Group], out: Outgoing) -> None:
        self._sender.groups(items, out, _nothing)


class _CoGroupMap(_Map):
    """A function of a whole group on two sides. The rows of the left one come first."""

    def __init__(
        self,
        program: PythonProgram,
        right_columns: tuple[StructField, ...],
        side: int,
        columns: tuple[Sequence[int], Sequence[int]],
        schema: pa.Schema,
        results: Sequence[Attribute],
    ) -> None:
        super().__init__(program, columns[0], schema, results)
        self._side = side
        self._right = Sender(replace(program, columns=right_columns), columns[1])

    def send(self, items: Iterable[Group], out: Outgoing) -> None:
        for group in items:
            out.integer(2)
            for number, sender in enumerate((self._sender, self._right)):
                batches = list(sender.batches(self._rows_of(group, number)))
                # A table is made of at least one batch.
                out.stream(sender.schema, batches or [empty_batch(sender.schema)])
        out.integer(0)

    def _rows_of(self, group: Group, side: int) -> Iterator[pa.RecordBatch]:
        for batch in group:
            on_right = pc.sum(batch.column(self._side)).as_py() or 0
            on_left = batch.num_rows - on_right
            rows = batch.slice(on_left) if side else batch.slice(0, on_left)
            if rows.num_rows:
                yield rows


class _Aggregate:
    """Aggregate functions: one value each per group, beside the group's keys."""

    def __init__(
        self,
        program: PythonProgram,
        columns: Sequence[int],
        keys: Sequence[int],
        schema: pa.Schema,
        types: Sequence[DataType],
    ) -> None:
        self._sender = Sender(program, columns)
        self._alignment = Alignment(keys, schema, types)
        self._groups = 0

    def send(self, items: Iterable[Group], out: Outgoing) -> None:
        self._sender.groups(items, out, self._note)
        if not self._groups:
            raise DataError("a Python function aggregates no rows.")

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._alignment.match(results)

    def finish(self) -> tuple[()]:
        self._alignment.finish()
        return ()

    def _note(self, group: Group) -> None:
        self._groups += 1
        self._alignment.add([group[0].slice(0, 1)])


class _Window:
    """Functions of a whole window partition or of frames in it, whose results stand beside its rows."""

    def __init__(
        self,
        program: PythonProgram,
        frames: tuple[RowFrame, ...],
        columns: Sequence[int],
        kept: Sequence[int],
        schema: pa.Schema,
        types: Sequence[DataType],
    ) -> None:
        self._sender = Sender(program, columns)
        self._frames = frames
        self._alignment = Alignment(kept, schema, types)

    def send(self, items: Iterable[Group], out: Outgoing) -> None:
        groups = (add_bounds(group, self._frames) for group in items) if self._frames else items
        self._sender.groups(groups, out, self._alignment.add)

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._alignment.match(results)

    def finish(self) -> tuple[()]:
        self._alignment.finish()
        return ()
