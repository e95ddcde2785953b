# SPDX-License-Identifier: Apache-2.0
"""The stages of a query, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from volley.field_types import PartitionCount
from volley.lru_cache import LruCache
from volley.plan.expressions import Attribute, Expression
from volley.plan.nodes import FileScan, Node, Partitioning, StageInput, WriteFiles, walk
from volley.plan.types import to_arrow
from volley.stages.subqueries import subquery_stages


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
    report, what has been decided about the stage so far, and `pruned_files` counts files that are left out because of
    the keys of a join.
    """

    id: int
    plan: Node
    tasks: int
    output: Output | None = None
    ordered: bool = False
    whole: frozenset[int] = frozenset()
    decisions: tuple[str, ...] = ()
    pruned_files: int = 0

    # Walks over a plan that is kept for a repeated query are made once.
    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        return tuple(node for node in walk(self.plan) if isinstance(node, StageInput))

    @cached_property
    def subqueries(self) -> frozenset[int]:
        """The stages whose results its expressions use."""
        return subquery_stages(self.plan)


Answered = tuple[Stage, Stage]
"""A stage, and what it became when it got the result of a subquery."""


@dataclass(frozen=True)
class StageGraph:
    """Producers come before their readers; the last stage produces the result.

    `subqueries` are stages without readers: their results become literals in the plans of others.
    """

    stages: tuple[Stage, ...]
    subqueries: frozenset[int] = frozenset()
    answered: LruCache[tuple[int, int, bytes], Answered] = field(
        default_factory=lambda: LruCache(16), compare=False, repr=False
    )
    """By the identity of the stage, the subquery and its result. The same answer gives the same plan, whose frame may
    be known."""

    @cached_property
    def stores(self) -> frozenset[str]:
        """The ids of the object stores that the stages read, or write to."""
        found: set[str] = set()
        for stage in self.stages:
            for node in walk(stage.plan):
                if isinstance(node, FileScan):
                    found |= node.stores
                elif isinstance(node, WriteFiles) and node.upload is not None:
                    found.add(node.upload.store)
        return frozenset(found)

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
