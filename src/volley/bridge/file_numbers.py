# SPDX-License-Identifier: Apache-2.0
"""Into which file a row is written, if the user said how many files there are.

repartition(8)              evenly into 8 files
repartition(8, "k")         by the hash of k, a column of the rows from here on
repartition("k")            the number is Spark's own; kept only if k names the folders: one file in each
sortWithinPartitions(...)   the order of the rows in each file, wherever they were sorted before
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.bridge.write_command import Repartitioned
from volley.plan import synthetic_ids
from volley.plan.expressions import Alias, Call, EvalMode, Literal, SortKey, references
from volley.plan.nodes import Exchange, Filter, Node, Partitioning, Project, Sort, with_children
from volley.plan.order import is_ordered
from volley.plan.types import BINARY, BOOLEAN, BYTE, DATE, INTEGER, LONG, SHORT, STRING, TIMESTAMP

# What `XxHash64` has a native form for.
_HASHED = frozenset({BOOLEAN, BYTE, SHORT, INTEGER, LONG, STRING, BINARY, DATE, TIMESTAMP})


@dataclass(frozen=True)
class Division:
    """The rows of a write without their own sort, and what `WriteFiles` says about its files."""

    rows: Node
    files: int | None
    numbered: bool = False
    order: tuple[SortKey, ...] = ()


def number_files(plan: Node, repartitioned: Repartitioned | None) -> tuple[Alias, ...]:
    """The number of the file into which rows with equal keys go, if the rows were repartitioned by columns.

    These are not the numbers of Spark's partitions, so a file has other keys, but all rows of each.
    """
    if repartitioned is None or repartitioned.partitions == 1:
        return ()
    below = plan
    while isinstance(below, Project | Filter | Sort):
        below = below.child
    if not isinstance(below, Exchange) or below.partitioning is not Partitioning.HASH:
        return ()
    columns = {column.id for column in plan.output}
    if any(key.type not in _HASHED or not references(key) <= columns for key in below.keys):
        return ()
    hashed = Call("XxHash64", below.keys, LONG, options=(("seed", 42),))
    number = Call("Pmod", (hashed, Literal(repartitioned.partitions, LONG)), LONG, EvalMode.LEGACY)
    return (Alias(synthetic_ids.FILE_NUMBER, "file", number),)


def divide(rows: Node, repartitioned: Repartitioned | None) -> Division:
    """`rows` are laid out for files, with their number in the last column if keys decide it."""
    if repartitioned is None or repartitioned.partitions == 1:
        return Division(rows, None if repartitioned is None else 1)
    if is_ordered(rows):
        # Of rows that `coalesce` leaves in their order, one file keeps it.
        return Division(rows, None)
    numbered = rows.output[-1].id == synthetic_ids.FILE_NUMBER
    unsorted, keys = _take_sort(rows)
    folders = _folder_columns(rows)
    columns = {column.id for column in rows.output}
    # A folder has one value of its columns.
    order = tuple(key for key in keys if not references(key.child) <= folders)
    if all(references(key.child) <= columns for key in order) and (numbered or not repartitioned.by_folder):
        return Division(unsorted, repartitioned.partitions, numbered, order)
    # Sorted by a column that is not written: one file keeps the order.
    return Division(_without_number(rows) if numbered else rows, None)


def _take_sort(node: Node) -> tuple[Node, tuple[SortKey, ...]]:
    """The rows without a sort within partitions at the top of their plan, and its keys."""
    match node:
        case Project(child=child) | Filter(child=child):
            below, keys = _take_sort(child)
            return with_children(node, (below,)), keys
        case Sort(keys, False, child):
            return child, keys
        case _:
            return node, ()


def _folder_columns(rows: Node) -> set[int]:
    """The columns whose values name the folders."""
    if not isinstance(rows, Project):
        return set()
    texts = range(synthetic_ids.PARTITION_TEXT, 2 * synthetic_ids.PARTITION_TEXT)
    named = (part for part in rows.expressions if isinstance(part, Alias) and part.id in texts)
    return {id for part in named for id in references(part.child)}


def _without_number(rows: Node) -> Node:
    assert isinstance(rows, Project)
    return Project(rows.expressions[:-1], rows.child)
