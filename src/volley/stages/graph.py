# SPDX-License-Identifier: Apache-2.0
"""The stages of a query, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import Node, Partitioning, StageInput, walk
from volley.plan.types import to_arrow


@dataclass(frozen=True)
class Output:
    """How every task of a stage lays out its rows for the readers.

    `hash`: by `keys` into `partitions`. `round robin`: evenly into `partitions`. `single` and `broadcast`: one
    partition, read by one task or by all. `enough_rows` is set where readers want no more than that many rows
    of the whole stage, whichever they are: the stage may stop when its finished tasks gave them.
    """

    partitioning: Partitioning
    partitions: int = 1
    keys: tuple[Expression, ...] = ()
    enough_rows: int | None = None


@dataclass(frozen=True)
class Stage:
    """`plan` ends in sources and in inputs from other stages; each of the `tasks` runs it over its own share.

    The result stage has no `output`: its rows go to the client, in order when `ordered` (it has one task then).
    Inputs in `whole` are read whole by every task, however they are partitioned. `decisions` says in words what has
    been decided about it so far.
    """

    id: int
    plan: Node
    tasks: int
    output: Output | None = None
    ordered: bool = False
    whole: frozenset[int] = frozenset()
    decisions: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[StageInput, ...]:
        return tuple(node for node in walk(self.plan) if isinstance(node, StageInput))


@dataclass(frozen=True)
class StageGraph:
    """Producers stand before their readers; the last stage gives the result.

    `subqueries` are stages that nobody reads: their results stand in the plans of others.
    """

    stages: tuple[Stage, ...]
    subqueries: frozenset[int] = frozenset()

    @property
    def result(self) -> Stage:
        return self.stages[-1]

    def __getitem__(self, stage: int) -> Stage:
        return self.stages[stage]


def result_schema(output: tuple[Attribute, ...]) -> pa.Schema:
    """The columns of a result: named by their positions, because Spark's names may repeat."""
    return pa.schema(
        [pa.field(str(position), to_arrow(attribute.type)) for position, attribute in enumerate(output)]
    )
