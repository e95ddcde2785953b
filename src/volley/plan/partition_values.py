# SPDX-License-Identifier: Apache-2.0
"""Places values that depend on Spark's partitions: ids, random numbers, samples and row numbers.

    Project [a, monotonically_increasing_id() AS m]       Project [a, m]
      Filter [a > 1]                                ->      PartitionedRows [monotonically_increasing_id() AS m]
        FileScan [a]                                          Filter [a > 1]
                                                                FileScan [a], in the partitions of Spark

    Sample 0.0 to 0.1 of [a]                              Project [a]
      FileScan [a]                                  ->      Filter [0.0 <= r and r < 0.1]
                                                              PartitionedRows [rand(seed) AS r]
                                                                FileScan [a], in the partitions of Spark

Where partitions are not certain before the query runs, or where Spark evaluates a value for some rows only, the plan
stays as it is, and Spark runs the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from volley.plan import synthetic_ids
from volley.plan.builders import both, compare
from volley.plan.evaluated import always_evaluated
from volley.plan.expressions import (
    Alias,
    Attribute,
    Call,
    Expression,
    Literal,
    attribute_of,
    conjuncts,
    references,
    transform,
    walk,
)
from volley.plan.nodes import (
    FileScan,
    Filter,
    Node,
    NumberedRows,
    PartitionedRows,
    Project,
    Sample,
    expressions,
    with_children,
)
from volley.plan.nodes import walk as walk_nodes
from volley.plan.partition_nodes import PARTITION_FUNCTIONS, ROW_NUMBER
from volley.plan.spark_partitions import Layout, with_partitions
from volley.plan.subqueries import plans_in, with_subqueries
from volley.plan.types import DOUBLE, LONG


def depends_on_partitions(plan: Node) -> bool:
    """Whether a plan has such values."""
    return any(
        isinstance(node, Sample | NumberedRows) or any(map(_calls_any, expressions(node)))
        for node in walk_nodes(plan)
    ) or any(map(depends_on_partitions, plans_in(plan)))


class PartitionValues:
    """Places the values of one query.

    `layout_below` asks how Spark partitions the input of a node of the captured plan. `prepare` makes a plan native,
    or gives None. `replaced` is told of every node that has become another with the same output.
    """

    def __init__(
        self,
        layout_below: Callable[[Node], Layout | None],
        prepare: Callable[[Node], Node | None],
        replaced: Callable[[Node, Node], None],
    ) -> None:
        self._layout_below = layout_below
        self._prepare = prepare
        self._replaced = replaced
        self._ids = count(synthetic_ids.PARTITION_VALUE)

    def place(self, plan: Node) -> Node:
        return with_subqueries(self._place(plan), self.place)

    def _place(self, old: Node) -> Node:
        node = with_children(old, tuple(self._place(child) for child in old.children))
        new = self._replace(old, node) or node
        if new is not old:
            self._replaced(old, new)
        return new

    def _replace(self, old: Node, node: Node) -> Node | None:
        """The node without such values; None if it has none, or if Spark has to compute them."""
        match node:
            case Project() if any(map(_calls_any, node.expressions)):
                if not all(map(_is_certain, node.expressions)):
                    return None
                found = self._over(old, node.child, _calls_of(node.expressions))
                return (
                    None
                    if found is None
                    else replace(node, expressions=found.use(node.expressions), child=found.rows)
                )
            case Filter() if _calls_any(node.condition):
                return self._filter(old, node)
            case Sample() if not node.replacement:
                number = Call("Rand", (Literal(node.seed, LONG),), DOUBLE)
                found = self._over(old, node.child, [number])
                return None if found is None else Project(node.output, _sampled(node, found))
            case NumberedRows(number, child):
                found = self._over(old, child, [Call(ROW_NUMBER, (), LONG)], number)
                return None if found is None else Project(node.output, found.rows)
            case _:
                return None

    def _filter(self, old: Node, node: Filter) -> Node | None:
        """One filter for each part with such values: Spark evaluates it only for rows that pass those before."""
        parts = list(conjuncts(node.condition))
        if not all(map(_is_certain, parts)) or _moves_null_checks(parts) or _prunes_late(parts, node.child):
            return None
        rows = node.child
        for part in parts:
            if _calls_any(part):
                found = self._over(old, rows, _calls_of([part]))
                if found is None:
                    return None
                (part,), rows = found.use((part,)), found.rows
            rows = Filter(part, rows)
        return Project(node.output, rows)

    def _over(
        self, old: Node, rows: Node, calls: list[Call], column: Attribute | None = None
    ) -> _Placed | None:
        """The rows with a column for each call. `old` is the node of Spark's plan that is over them."""
        columns = {call: column or Attribute(next(self._ids), "value", call.type, False) for call in calls}
        values = tuple(Alias(found.id, found.name, call) for call, found in columns.items())
        if (extended := extend(rows, values)) is not None:
            return _Placed(extended, columns)
        layout = self._layout_below(old)
        known = None if layout is None else with_partitions(rows, layout)
        prepared = None if known is None or any(True for _ in plans_in(known)) else self._prepare(known)
        return None if prepared is None else _Placed(PartitionedRows(prepared, values), columns)


def extend(rows: Node, values: tuple[Alias, ...]) -> Node | None:
    """Rows whose places are known already, with more values; None for others."""
    match rows:
        case PartitionedRows():
            return replace(rows, values=(*rows.values, *values))
        case Project(shown, child) if (below := extend(child, values)) is not None:
            return Project((*shown, *map(attribute_of, values)), below)
        case _:
            return None


class _Placed:
    """Rows with a column for each of some calls."""

    def __init__(self, rows: Node, columns: dict[Call, Attribute]) -> None:
        self.rows = rows
        self.columns = columns

    def use(self, parts: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """The expressions, reading the columns instead of calling."""

        def change(part: Expression) -> Expression:
            return self.columns.get(part, part) if isinstance(part, Call) else part

        return tuple(transform(part, change) for part in parts)


def _sampled(node: Sample, found: _Placed) -> Node:
    (number,) = found.columns.values()
    at_least = compare("GreaterThanOrEqual", number, Literal(node.lower, DOUBLE))
    return Filter(both(at_least, compare("LessThan", number, Literal(node.upper, DOUBLE))), found.rows)


def _calls(expression: Expression) -> Iterator[Call]:
    for part in walk(expression):
        if isinstance(part, Call) and part.function in PARTITION_FUNCTIONS:
            yield part


def _calls_any(expression: Expression) -> bool:
    return any(True for _ in _calls(expression))


def _calls_of(parts: tuple[Expression, ...] | list[Expression]) -> list[Call]:
    """Each call once: equal ones have equal values, since each counts for itself."""
    return list(dict.fromkeys(call for part in parts for call in _calls(part)))


def _is_certain(expression: Expression) -> bool:
    """Whether all such calls of an expression are evaluated for every row, with constants that are known."""
    # Counted, because one object may stand in several places.
    certain = sum(
        isinstance(part, Call) and part.function in PARTITION_FUNCTIONS
        for part in always_evaluated(expression)
    )
    calls = list(_calls(expression))
    return certain == len(calls) and all(
        map(_is_integer, (part for call in calls for part in call.arguments))
    )


def _is_integer(part: Expression) -> bool:
    """Whether it is a seed; Spark takes NULL for 0."""
    return isinstance(part, Literal) and (part.value is None or type(part.value) is int)


def _moves_null_checks(parts: list[Expression]) -> bool:
    """Whether Spark's generated code may evaluate a null check on the other side of a part with such values.

    It evaluates the null check of a column before the first part that reads the column, or at the end.
    """
    places = [place for place, part in enumerate(parts) if _calls_any(part)]
    for place, part in enumerate(parts):
        match part:
            case Call("IsNotNull", (checked,), _, _, _):
                readers = [
                    at
                    for at, other in enumerate(parts)
                    if not _is_null_check(other) and references(other) & references(checked)
                ]
                moved = min(readers, default=len(parts))
                # A reader is preceded by its checks.
                if any((place < at) != (moved <= at) for at in places if at != place):
                    return True
            case _:
                pass
    return False


def _prunes_late(parts: list[Expression], rows: Node) -> bool:
    """Whether a scan may leave out rows by a part that Spark evaluates after one with such values."""
    scans = (node for node in walk_nodes(rows) if isinstance(node, FileScan))
    kept = [_calls_any(part) for part in parts]
    return any(scan.filters for scan in scans) and kept != sorted(kept)


def _is_null_check(part: Expression) -> bool:
    return isinstance(part, Call) and part.function == "IsNotNull"
