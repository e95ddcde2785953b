# SPDX-License-Identifier: Apache-2.0
"""Runs equal stages once.

Spark merges repeated sub-trees only at run time, and gives each copy its own attribute ids. Two stages are equal if
their plans are equal after ids have been renumbered by first appearance and names have been removed. Readers find
columns by position, so merging changes only which stage they read.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from volley.plan.expressions import AggregateCall, Alias, Attribute, InSubquery, ScalarSubquery
from volley.plan.nodes import FileScan, Node, StageInput, transform
from volley.plan.subqueries import with_subqueries
from volley.stages.graph import Stage, StageGraph


def merge_equal_stages(graph: StageGraph) -> StageGraph:
    """The graph without stages that repeat an earlier one, renumbered without gaps."""
    kept: list[Stage] = []
    number: dict[int, int] = {}
    seen: dict[Any, int] = {}
    for stage in graph.stages:
        plan = _renumber(stage.plan, number)
        if graph.subqueries:
            plan = with_subqueries(plan, lambda subquery: _renumber(subquery, number))
        renumbered = replace(stage, id=len(kept), plan=plan)
        if stage is not graph.result:
            # A runtime filter may drop rows of a stage that its readers do not need, but no rows of a subquery.
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


def _renumber(plan: Node, number: dict[int, int]) -> Node:
    return transform(
        plan, lambda node: replace(node, stage=number[node.stage]) if isinstance(node, StageInput) else node
    )


def normal_form(value: Any) -> Any:
    """`value` with ids renumbered by first appearance and without names. Equal forms compute equal rows."""
    return _Normalizer().normalize(value)


class _Normalizer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def normalize(self, value: Any) -> Any:
        match value:
            case tuple():
                return tuple(self.normalize(item) for item in value)
            case FileScan():
                # Here a name selects a column of the file.
                names = tuple(attribute.name for attribute in value.output)
                return ("FileScan", names, *self._fields(value))
            case Attribute():
                return replace(value, id=self._number(value.id), name="")
            case ScalarSubquery() | InSubquery():
                return (type(value).__name__, *self._fields(replace(value, id=0)))
            case Alias():
                return ("Alias", self._number(value.id), self.normalize(value.child))
            case AggregateCall():
                numbered = replace(value, result_id=self._number(value.result_id))
                return ("AggregateCall", *self._fields(numbered))
            case _ if is_dataclass(value) and not isinstance(value, type):
                return (type(value).__name__, *self._fields(value))
            case _:
                # 1, 1.0 and True are equal in Python, but not as literals.
                return (type(value).__name__, value)

    def _fields(self, value: Any) -> tuple[Any, ...]:
        return tuple(self.normalize(getattr(value, field.name)) for field in fields(value))

    def _number(self, id: int) -> int:
        return self._numbers.setdefault(id, len(self._numbers))
