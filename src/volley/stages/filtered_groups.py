# SPDX-License-Identifier: Apache-2.0
"""Filters aggregates by a small filtered table that they are joined to, so that no dropped group is computed.

    Join  p_partkey = l_partkey                      Join  p_partkey = l_partkey
      Join  p_partkey = l_partkey                      Join  p_partkey = l_partkey
        lineitem                                         lineitem
        part, filtered                      ->           part, filtered
      Aggregate  by l_partkey                          Aggregate  by l_partkey
        lineitem                                         Semi join  l_partkey = p_partkey
                                                           lineitem
                                                           part, filtered

The table is read twice. In a query of several stages, `runtime_filters` does the same with its finished stage.
As there, an error in a group that no join needs is not raised.
"""

from __future__ import annotations

from dataclasses import replace

from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Node,
    Project,
    Sort,
    transform,
    walk,
    with_children,
)
from volley.plan.traits import traits_of
from volley.stages.join_order import can_pass
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import scanned_bytes
from volley.stages.selectivity import is_selective


def filter_groups(plan: Node) -> Node:
    """The plan with aggregates over only those rows that a join to a filtered table needs."""
    return transform(plan, lambda node: _filter_side(node) if isinstance(node, Join) else node)


def _filter_side(join: Join) -> Join:
    if join.kind is not JoinKind.INNER:
        return join
    for left, right in zip(join.left_keys, join.right_keys, strict=True):
        if not isinstance(left, Attribute) or not isinstance(right, Attribute):
            continue
        if (table := _find_table(join.left, left)) and (side := _filter(join.right, right, table, left)):
            return replace(join, right=side)
        if (table := _find_table(join.right, right)) and (side := _filter(join.left, left, table, right)):
            return replace(join, left=side)
    return join


def _find_table(node: Node, key: Attribute) -> Node | None:
    """A filtered table below inner joins, held in memory by one of them, that has all values of this column."""
    match node:
        case Join(kind=JoinKind.INNER):
            for place, child in enumerate(node.children):
                if not _has(child, key):
                    continue
                if node.build is (BuildSide.LEFT, BuildSide.RIGHT)[place] and _is_filtered_table(child):
                    return child
                return _find_table(child, key)
            return None
        case Filter() | Exchange() | Sort():
            return _find_table(node.child, key)
        case Project() if _passes(node.expressions, key):
            return _find_table(node.child, key)
        case _:
            return None


def _is_filtered_table(node: Node) -> bool:
    """Whether it is a filter over files, which can be read again."""
    nodes = list(walk(node))
    return (
        all(isinstance(part, FileScan | Filter | Project | Exchange) for part in nodes)
        and any(map(is_selective, nodes))
        and gives_same_rows(node)
    )


def _filter(node: Node, key: Attribute, table: Node, table_key: Attribute) -> Node | None:
    """`node` with its groups by `key` filtered by the table; None if it has none, or that would not pay."""
    match node:
        case Aggregate() if _passes(node.grouping, key):
            if traits_of(node).needs_order or scanned_bytes(node.child) <= scanned_bytes(table):
                return None
            keys = Project((table_key,), table)
            return replace(node, child=_semi_join(node.child, key, keys, table_key))
        case Filter() | Exchange() | Sort():
            below = _filter(node.child, key, table, table_key)
        case Project() if _passes(node.expressions, key):
            below = _filter(node.child, key, table, table_key)
        case _:
            return None
    return with_children(node, (below,)) if below is not None else None


def _semi_join(node: Node, key: Attribute, keys: Node, table_key: Attribute) -> Node:
    """`node` without rows whose key the table does not have: dropped as far down as nothing else changes."""
    if can_pass(node, frozenset({key.id})):
        places = [place for place in traits_of(node).divisible if _has(node.children[place], key)]
        if isinstance(node, Project | Exchange):
            places = [0]
        if len(places) == 1 and isinstance(node, Project | Exchange | Join):
            children = list(node.children)
            children[places[0]] = _semi_join(children[places[0]], key, keys, table_key)
            return with_children(node, tuple(children))
    return Join(JoinKind.SEMI, (key,), (table_key,), None, BuildSide.RIGHT, node, keys)


def _passes(parts: tuple[Expression, ...], key: Attribute) -> bool:
    return any(isinstance(part, Attribute) and part.id == key.id for part in parts)


def _has(node: Node, key: Attribute) -> bool:
    return any(attribute.id == key.id for attribute in node.output)
