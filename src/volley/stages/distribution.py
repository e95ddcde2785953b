# SPDX-License-Identifier: Apache-2.0
"""How the rows of a sub-plan are distributed over tasks, and how operators propagate that.

Spark omits an exchange if it knows that rows are already distributed well. Volley has its own task counts and hash
function, so it does not rely on that: it derives what each operator needs and adds an exchange where one is missing.
An unknown distribution costs an exchange, never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from volley.plan.expressions import Alias, Attribute, Expression, canonicalize, references, transform
from volley.plan.nodes import Aggregate, Expand, Node, Project

Keys = tuple[Expression, ...]


@dataclass(frozen=True)
class Distribution:
    """Rows over `tasks`. Rows with equal values of an element of `hashed_by` are in one task, chosen by their hash.

    Every element of `hashed_by` describes the same layout, for example by the keys of either side of an inner join.
    """

    tasks: int
    hashed_by: frozenset[Keys] = frozenset()

    @property
    def single(self) -> bool:
        return self.tasks == 1

    def clusters(self, keys: Iterable[Expression]) -> bool:
        """Whether rows with equal `keys` are guaranteed to be in one task."""
        wanted = {canonicalize(key) for key in keys}
        return self.single or any(wanted.issuperset(hashed) for hashed in self.hashed_by)

    def without_keys(self) -> Distribution:
        return Distribution(self.tasks)


def propagate(distribution: Distribution, node: Node) -> Distribution:
    """The distribution of an operator that works on its only child's rows in place."""
    match node:
        case Project():
            return _propagate_project(distribution, node)
        case Aggregate():
            return _propagate_aggregate(distribution, node)
        case Expand():
            return _propagate_expand(distribution, node)
        case _:
            # Drop keys that are no longer among the columns.
            return _rename(
                distribution, {canonicalize(column): canonicalize(column) for column in node.output}
            )


def _propagate_project(distribution: Distribution, node: Project) -> Distribution:
    return _rename(distribution, _names(node.expressions))


def _propagate_aggregate(distribution: Distribution, node: Aggregate) -> Distribution:
    by_group = {canonicalize(key): canonicalize(_attribute(key)) for key in node.grouping}
    return _rename(_rename(distribution, by_group), _names(node.results))


def _propagate_expand(distribution: Distribution, node: Expand) -> Distribution:
    """Only columns that every projection passes on unchanged still determine the task of a row."""
    kept = {
        canonicalize(attribute): canonicalize(attribute)
        for position, attribute in enumerate(node.output)
        if all(
            canonicalize(projection[position]) == canonicalize(attribute) for projection in node.projections
        )
    }
    return _rename(distribution, kept)


def _names(expressions: Iterable[Expression]) -> dict[Expression, Expression]:
    names: dict[Expression, Expression] = {}
    for expression in expressions:
        names.setdefault(canonicalize(expression), canonicalize(_attribute(expression)))
    return names


def _attribute(expression: Expression) -> Expression:
    if isinstance(expression, Alias):
        return Attribute(expression.id, expression.name, expression.type)
    return expression


def _rename(distribution: Distribution, names: Mapping[Expression, Expression]) -> Distribution:
    """The distribution over the new columns; keys that cannot be expressed over them are dropped."""
    known = frozenset(id for name in names.values() for id in references(name))

    def rename_key(key: Expression) -> Expression | None:
        if key in names:
            return names[key]
        renamed = transform(key, lambda part: names.get(part, part))
        return renamed if references(renamed) <= known else None

    hashed_by = set()
    for keys in distribution.hashed_by:
        renamed = tuple(rename_key(key) for key in keys)
        if all(key is not None for key in renamed):
            hashed_by.add(tuple(key for key in renamed if key is not None))
    return Distribution(distribution.tasks, frozenset(hashed_by))
