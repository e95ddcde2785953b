# SPDX-License-Identifier: Apache-2.0
"""Equal stages run once.

Spark merges repeated sub-trees only while it runs, and gives each copy its own attribute ids. Two stages are equal when
their plans are, after ids have been numbered in the order in which they appear and names, which only people read,
are gone. Readers find columns by position, so a merged stage needs no change but in who reads it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from volley.plan.expressions import AggregateCall, Alias, Attribute, InSubquery, ScalarSubquery
from volley.plan.nodes import FileScan, Node, StageInput, transform
from volley.plan.subqueries import with_subqueries
from volley.stages.graph import Stage, StageGraph


def merge_equal_stages(graph: StageGraph) -> StageGraph:
    """The graph without stages that repeat an earlier one, numbered anew without gaps."""
    kept: list[Stage] = []
    number: dict[int, int] = {}
    seen: dict[Any, int] = {}
    for stage in graph.stages:
        plan = _renumbered(stage.plan, number)
        if graph.subqueries:
            plan = with_subqueries(plan, lambda subquery: _renumbered(subquery, number))
        renumbered = replace(stage, id=len(kept), plan=plan)
        if stage is not graph.result:
            # Rows that only its readers have no use for are left out of a stage, but not of the result of a subquery.
            asked = stage.id in graph.subqueries
            form = normal_form(
                (renumbered.plan, renumbered.output, renumbered.tasks, renumbered.ordered, asked)
            )
            if form in seen:
                number[stage.id] = seen[form]
                continue
            seen[form] = renumbered.id
        number[stage.id] = renumbered.id
        kept.append(renumbered)
    return StageGraph(tuple(kept), frozenset(number[stage] for stage in graph.subqueries))


def _renumbered(plan: Node, number: dict[int, int]) -> Node:
    return transform(
        plan, lambda node: replace(node, stage=number[node.stage]) if isinstance(node, StageInput) else node
    )


def normal_form(value: Any) -> Any:
    """`value` with ids numbered by first appearance and without names; equal forms compute equal rows."""
    return _Normalizer().normal(value)


class _Normalizer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def normal(self, value: Any) -> Any:
        match value:
            case tuple():
                return tuple(self.normal(item) for item in value)
            case FileScan():
                # Here a name says which column of the file is read.
                names = tuple(attribute.name for attribute in value.output)
                return ("FileScan", names, *self._fields(value))
            case Attribute():
                return replace(value, id=self._number(value.id), name="")
            case ScalarSubquery() | InSubquery():
                return (type(value).__name__, *self._fields(replace(value, id=0)))
            case Alias():
                return ("Alias", self._number(value.id), self.normal(value.child))
            case AggregateCall():
                numbered = replace(value, result_id=self._number(value.result_id))
                return ("AggregateCall", *self._fields(numbered))
            case _ if is_dataclass(value) and not isinstance(value, type):
                return (type(value).__name__, *self._fields(value))
            case _:
                # 1, 1.0 and True are equal in Python, but not as literals.
                return (type(value).__name__, value)

    def _fields(self, value: Any) -> tuple[Any, ...]:
        return tuple(self.normal(getattr(value, field.name)) for field in fields(value))

    def _number(self, id: int) -> int:
        return self._numbers.setdefault(id, len(self._numbers))
