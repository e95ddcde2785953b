# SPDX-License-Identifier: Apache-2.0
"""Operators whose rows depend on how Spark partitions them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from volley.plan.expressions import Alias, Attribute, Call, attribute_of
from volley.plan.node_shapes import UnaryNode

if TYPE_CHECKING:
    from volley.plan.nodes import Node

ROW_NUMBER = "DistributedSequenceID"
"""The number of a row, from 0, with the partitions one after the other."""

PLACE = "PlaceOfRow"
"""The number of a row's partition, above `PARTITION_BITS` bits for its number there: `monotonically_increasing_id()`.

With arguments, the keys of groups, it fails where there are more than `groups` of these or, without `nulls`, where a
key is NULL: Spark then aggregates rows in another order.
"""
PARTITION_BITS = 33

PARTITION_FUNCTIONS = frozenset(
    {"MonotonicallyIncreasingID", "SparkPartitionID", "Rand", "Randn", "RandStr", "Uuid", ROW_NUMBER, PLACE}
)
"""The functions that a `PartitionedRows` computes."""


@dataclass(frozen=True)
class Sample(UnaryNode):
    """Each row with the probability `upper` - `lower`, by Spark's random numbers for its partitions from `seed`.

    Runs natively only as a `PartitionedRows` with a filter. With `replacement`, a row may occur several times.
    """

    lower: float
    upper: float
    replacement: bool
    seed: int
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output


@dataclass(frozen=True)
class NumberedRows(UnaryNode):
    """The child's rows after `number`, their number from 0 in the order of Spark's partitions.

    Runs natively only as a `PartitionedRows`.
    """

    number: Attribute
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return (self.number, *self.child.output)


@dataclass(frozen=True)
class PartitionedRows:
    """The rows of `plan`, with columns that depend on their places in Spark's partitions.

    `plan` contains only operators that keep partitions and the order of rows, and leaves whose partitions are known
    (`plan.partition_values`). It runs once for each of them, one stream that keeps the order. `values` are calls of the
    functions in `PARTITION_FUNCTIONS`. `first` is Spark's number of the first partition. `ordered`: the partitions come
    one after the other.

    A leaf, because no pass may change which rows its plan has, or their order.
    """

    plan: Node
    values: tuple[Alias, ...]
    first: int = 0
    ordered: bool = False

    children = ()

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.plan.output + tuple(attribute_of(value) for value in self.values)

    @property
    def in_order(self) -> bool:
        """Whether a value depends on the partitions before its own, too."""
        return any(isinstance(v.child, Call) and v.child.function == ROW_NUMBER for v in self.values)
