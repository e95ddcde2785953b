# SPDX-License-Identifier: Apache-2.0
"""Rows that are in one partition of Spark because the program said `coalesce(1)`.

The operator is not part of plans: it moves no rows here. What reads the rows may see that they are together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from volley.plan.nodes import Filter, Node, Project, Sort
from volley.plan.python_nodes import PythonEval

_ROW_BY_ROW = (Project, Filter, PythonEval)


def is_gathered(node: Node, gathered: Sequence[Node]) -> bool:
    """Whether the rows are those of a node in `gathered`, by identity, or computed from them row by row."""
    while not any(node is one for one in gathered):
        if not isinstance(node, _ROW_BY_ROW):
            return False
        node = node.child
    return True


def sort_whole(node: Node, gathered: Sequence[Node]) -> Node:
    """`coalesce(1).sortWithinPartitions(...)` sorts all rows."""
    if isinstance(node, Sort) and not node.whole and is_gathered(node.child, gathered):
        return replace(node, whole=True)
    return node
