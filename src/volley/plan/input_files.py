# SPDX-License-Identifier: Apache-2.0
"""Replaces `input_file_name()` by a column of the scan that reads the file.

    Project [a, input_file_name() AS f]            Project [a, file AS f]
      Filter [a > 1]                         ->      Filter [a > 1]
        FileScan [a]                                   FileScan [a, file]

Only filters and projections may be between the two: above other operators the function depends on what Spark's task
has read last, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from volley.plan import synthetic_ids
from volley.plan.expressions import Attribute, Call, Expression, transform, walk
from volley.plan.nodes import (
    DataFile,
    FileScan,
    Filter,
    Node,
    Project,
    expressions,
    map_expressions,
    with_children,
)
from volley.plan.subqueries import with_subqueries
from volley.plan.types import STRING

_FUNCTION = "InputFileName"


def asks_for_file_names(entries: list[Any]) -> bool:
    """Whether a serialized plan calls the function."""
    return any(type(entry) is list and entry[0] == _FUNCTION for entry in entries)


def file_name_columns() -> Callable[[], Attribute]:
    """Columns for the files of scans. Each has an id of its own within a plan."""
    ids = count(synthetic_ids.INPUT_FILE)
    return lambda: Attribute(next(ids), "file", STRING, False)


def replace_file_names(plan: Node, replaced: Callable[[Node, Node], None]) -> Node:
    """Use the columns that the scans of a plan have for their files, and remove those that nothing uses.

    `replaced` is told of every node that has become another with the same output.
    """

    def change(node: Node) -> Node:
        if isinstance(node, Project | Filter) and _calls(node) and (changed := _with_file(node)) is not None:
            new: Node = changed if isinstance(node, Project) else Project(node.output, changed)
            if isinstance(new, Project):
                # What was added for the operators above is not part of the output.
                new = replace(new, expressions=new.expressions[: len(node.output)])
        elif isinstance(node, FileScan):
            new = _without_file(node)
        else:
            new = with_children(node, tuple(change(child) for child in node.children))
        if new is not node:
            replaced(node, new)
        return new

    return with_subqueries(change(plan), lambda subquery: replace_file_names(subquery, replaced))


def _calls(node: Node) -> bool:
    return any(
        isinstance(part, Call) and part.function == _FUNCTION
        for expression in expressions(node)
        for part in walk(expression)
    )


def _with_file(node: Node) -> Node | None:
    """The node with the file's column as its last one, and without calls of the function; None if it has no file."""
    match node:
        case FileScan() if _file_column(node) is not None:
            return replace(node, output=(*node.output, node.partition_columns[-1]))
        case Project() | Filter():
            child = _with_file(node.child)
            if child is None:
                return None
            column = child.output[-1]
            changed = map_expressions(
                replace(node, child=child), lambda expression: _substitute(expression, column)
            )
            if isinstance(changed, Project):
                return replace(changed, expressions=(*changed.expressions, column))
            return changed
        case _:
            return None


def _substitute(expression: Expression, column: Attribute) -> Expression:
    def change(part: Expression) -> Expression:
        return column if isinstance(part, Call) and part.function == _FUNCTION else part

    return transform(expression, change)


def _file_column(scan: FileScan) -> Attribute | None:
    last = scan.partition_columns[-1:]
    return next((column for column in last if column.id >= synthetic_ids.INPUT_FILE), None)


def _without_file(scan: FileScan) -> FileScan:
    if _file_column(scan) is None:
        return scan
    files: tuple[DataFile, ...] = tuple(replace(file, partition=file.partition[:-1]) for file in scan.files)
    return replace(scan, partition_columns=scan.partition_columns[:-1], files=files)
