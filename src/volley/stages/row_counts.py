# SPDX-License-Identifier: Apache-2.0
"""Adds a constant column to rows without columns, so that the row count survives in every batch.

    count(*)                          count(*)
      Join                              Project [row 0]
        Project []            ->          Join
          LocalRows                         Project [true AS row 0]
        FileScan []                           LocalRows
                                            Project [true AS row 1]
                                              FileScan []

Batches without columns easily lose their row count: pyarrow derives it from the columns, and DataFusion drops an empty
projection and returns the columns below it. After this pass only leaves may have no columns, and their rows get the
constant in the same fragment. So no stage writes, sends or reads rows without columns. The result of a query without
columns has one, which `bridge.result` drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from volley.plan import synthetic_ids
from volley.plan.expressions import Alias, Literal, attribute_of
from volley.plan.nodes import Aggregate, Expand, Node, Project, TopN, Union, with_children
from volley.plan.types import BOOLEAN


class RowCounts:
    """Adds the columns. Each has its own id within a query, because joins identify columns by id."""

    def __init__(self) -> None:
        self._ids: Iterator[int] = count(synthetic_ids.ROW)

    def keep(self, node: Node) -> Node:
        """The plan with the same output, or one constant column if it had none."""
        children = tuple(self.keep(child) for child in node.children)
        same = all(new is old for new, old in zip(children, node.children, strict=True))
        changed = node if same else with_children(node, children)
        if node.output:
            # Joins and windows pass on the columns of their inputs.
            return changed if changed.output == node.output else Project(node.output, changed)
        match changed:
            case Project():
                return replace(changed, expressions=(self._constant(),))
            case TopN():
                return replace(changed, expressions=(self._constant(),))
            case Aggregate():
                return replace(changed, results=(self._constant(),))
            case Expand():
                constant = self._constant()
                projections = ((constant.child,),) * len(changed.projections)
                return replace(changed, output=(attribute_of(constant),), projections=projections)
            case Union():
                return replace(changed, output=(attribute_of(self._constant()),))
            case _ if not changed.output:
                return Project((self._constant(),), changed)
            case _:
                return changed if len(changed.output) == 1 else Project(changed.output[:1], changed)

    def _constant(self) -> Alias:
        return Alias(next(self._ids), "row", Literal(True, BOOLEAN))
