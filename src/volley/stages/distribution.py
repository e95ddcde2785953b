# SPDX-License-Identifier: Apache-2.0
"""How the rows of a sub-plan lie across tasks, and how operators carry that along.

Spark leaves an exchange out where it knows that rows already lie well. The task counts and the hash function here are
our own, so nothing is taken from Spark: what an operator needs is derived and compared, and an exchange is put in
where it is missing. An unknown layout costs an exchange, never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from volley.plan.expressions import Alias, Attribute, Expression, plain, references, transform
from volley.plan.nodes import Aggregate, Expand, Node, Project

Keys = tuple[Expression, ...]


@dataclass(frozen=True)
class Distribution:
    """Over `tasks`. Rows that agree on all of some `hashed_by` keys are in one task, chosen by hash in that order.

    Every element of `hashed_by` describes the same layout (both sides of an inner join name it, for example).
    """

    tasks: int
    hashed_by: frozenset[Keys] = frozenset()

    @property
    def single(self) -> bool:
        return self.tasks == 1

    def clusters(self, keys: Iterable[Expression]) -> bool:
        """Whether rows that agree on `keys` are certain to be in one task."""
        wanted = {plain(key) for key in keys}
        return self.single or any(wanted.issuperset(hashed) for hashed in self.hashed_by)

    def scattered(self) -> Distribution:
        return Distribution(self.tasks)


def through(distribution: Distribution, node: Node) -> Distribution:
    """How the rows of an operator lie that works on those of its only child where they are."""
    match node:
        case Project():
            return _through_project(distribution, node)
        case Aggregate():
            return _through_aggregate(distribution, node)
        case Expand():
            return _through_expand(distribution, node)
        case _:
            # Columns of other ids are new: keys that are not among the columns are forgotten.
            return _renamed(distribution, {plain(column): plain(column) for column in node.output})


def _through_project(distribution: Distribution, node: Project) -> Distribution:
    return _renamed(distribution, _names(node.expressions))


def _through_aggregate(distribution: Distribution, node: Aggregate) -> Distribution:
    by_group = {plain(key): plain(_attribute(key)) for key in node.grouping}
    return _renamed(_renamed(distribution, by_group), _names(node.results))


def _through_expand(distribution: Distribution, node: Expand) -> Distribution:
    """Only columns that every projection passes on unchanged still tell where a row is."""
    kept = {
        plain(attribute): plain(attribute)
        for position, attribute in enumerate(node.output)
        if all(plain(projection[position]) == plain(attribute) for projection in node.projections)
    }
    return _renamed(distribution, kept)


def _names(expressions: Iterable[Expression]) -> dict[Expression, Expression]:
    names: dict[Expression, Expression] = {}
    for expression in expressions:
        names.setdefault(plain(expression), plain(_attribute(expression)))
    return names


def _attribute(expression: Expression) -> Expression:
    if isinstance(expression, Alias):
        return Attribute(expression.id, expression.name, expression.type)
    return expression


def _renamed(distribution: Distribution, names: Mapping[Expression, Expression]) -> Distribution:
    """The layout in terms of the new columns; keys that cannot be said in them are forgotten."""
    known = frozenset(id for name in names.values() for id in references(name))

    def rename(key: Expression) -> Expression | None:
        if key in names:
            return names[key]
        renamed = transform(key, lambda part: names.get(part, part))
        return renamed if references(renamed) <= known else None

    hashed_by = set()
    for keys in distribution.hashed_by:
        renamed = tuple(rename(key) for key in keys)
        if all(key is not None for key in renamed):
            hashed_by.add(tuple(key for key in renamed if key is not None))
    return Distribution(distribution.tasks, frozenset(hashed_by))
