# SPDX-License-Identifier: Apache-2.0
"""The stages of a query, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from volley.fields import PartitionCount
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import Node, Partitioning, StageInput, walk
from volley.plan.types import to_arrow


@dataclass(frozen=True)
class Output:
    """How every task of a stage partitions its rows for the readers.

    `hash`: by `keys` into `partitions`. `round robin`: evenly into `partitions`. `single` and `broadcast`: one
    partition, read by one task or by all. `enough_rows` is set if readers need only that many rows of the whole
    stage, no matter which: the stage may stop once its finished tasks have produced them.
    """

    partitioning: Partitioning
    partitions: PartitionCount = 1
    keys: tuple[Expression, ...] = ()
    enough_rows: int | None = None


@dataclass(frozen=True)
class Stage:
    """The leaves of `plan` are sources and inputs from other stages; each of the `tasks` runs it over its own share.

    The result stage has no `output`: its rows go to the client, in order if `ordered` (it then has one task).
    Every task reads the inputs in `whole` completely, however they are partitioned. `decisions` describes, for the
    report, what has been decided about the stage so far.
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
    """Producers come before their readers; the last stage produces the result.

    `subqueries` are stages without readers: their results become literals in the plans of others.
    """

    stages: tuple[Stage, ...]
    subqueries: frozenset[int] = frozenset()

    @property
    def result(self) -> Stage:
        return self.stages[-1]

    def __getitem__(self, stage: int) -> Stage:
        return self.stages[stage]


def result_schema(output: tuple[Attribute, ...]) -> pa.Schema:
    """The columns of a result, named by position because Spark's names may repeat."""
    return pa.schema(
        [pa.field(str(position), to_arrow(attribute.type)) for position, attribute in enumerate(output)]
    )
