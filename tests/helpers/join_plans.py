# SPDX-License-Identifier: Apache-2.0
"""Plans of joins over rows in the plan, and what they output, computed the slow and obvious way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from volley.plan.expressions import Attribute, Call, Literal
from volley.plan.nodes import Exchange, Filter, Join, JoinKind, LocalRows, Node, Partitioning, Project, Sort
from volley.plan.types import BOOLEAN, LONG

Row = dict[int, int | None]


def make_table(columns: Sequence[Attribute], rows: Sequence[Sequence[int | None]] = ()) -> LocalRows:
    schema = pa.schema([(str(column.id), pa.int64()) for column in columns])
    values = [[row[place] for row in rows] for place in range(len(columns))]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.table(values, schema))
    return LocalRows(tuple(columns), sink.getvalue().to_pybytes())


def rows_of(node: Node) -> Iterator[Row]:
    """What a plan outputs, computed the slow and obvious way."""
    match node:
        case LocalRows():
            for row in pa.ipc.open_stream(node.ipc).read_all().to_pylist():
                yield {int(id): value for id, value in row.items()}
        case Exchange() | Sort():
            yield from rows_of(node.child)
        case Project():
            kept = [part.id for part in node.expressions if isinstance(part, Attribute)]
            assert len(kept) == len(node.expressions)
            yield from ({id: row[id] for id in kept} for row in rows_of(node.child))
        case Filter(Call("GreaterThan", (Attribute() as column, Literal(int() as bound, _)), _, _, _), child):
            yield from (
                row for row in rows_of(child) if (value := row[column.id]) is not None and value > bound
            )
        case Join():
            yield from joined_rows(node)
        case _:
            raise AssertionError(node)


def joined_rows(join: Join) -> Iterator[Row]:
    right = list(rows_of(join.right))
    keys = [
        (left.id, right_key.id)
        for left, right_key in zip(join.left_keys, join.right_keys, strict=True)
        if isinstance(left, Attribute) and isinstance(right_key, Attribute)
    ]
    nothing: Row = {column.id: None for column in join.right.output}
    for row in rows_of(join.left):
        found = [other for other in right if all(row[a] is not None and row[a] == other[b] for a, b in keys)]
        match join.kind:
            case JoinKind.SEMI:
                yield from [row] if found else []
            case JoinKind.ANTI:
                yield from [] if found else [row]
            case JoinKind.LEFT:
                yield from (row | other for other in found or [nothing])
            case _:
                yield from (row | other for other in found)


def broadcast(node: Node) -> Exchange:
    return Exchange(Partitioning.BROADCAST, 1, (), (), node)


def greater(column: Attribute, bound: int, child: Node) -> Filter:
    return Filter(Call("GreaterThan", (column, Literal(bound, LONG)), BOOLEAN), child)


def count(plan: Node) -> Counter[tuple[int | None, ...]]:
    ids = [column.id for column in plan.output]
    return Counter(tuple(row[id] for id in ids) for row in rows_of(plan))


def columns(*ids: int) -> tuple[Attribute, ...]:
    return tuple(Attribute(id, f"c{id}", LONG) for id in ids)
