# SPDX-License-Identifier: Apache-2.0
"""Whether a plan may output far fewer rows than it reads. Only then is it worth waiting for its actual size."""

from __future__ import annotations

from volley.identity_cache import once_per_object
from volley.plan.nodes import Filter, Join, Node, walk
from volley.plan.traits import Reduction, traits_of


@once_per_object
def may_shrink(plan: Node) -> bool:
    return any(traits_of(node).reduces is not Reduction.NONE for node in walk(plan))


def drops_rows(plan: Node) -> bool:
    """Whether the plan itself may drop most rows of its inputs. Joins do not count: they drop what these drop."""
    return any(
        not isinstance(node, Join) and traits_of(node).reduces is not Reduction.NONE for node in walk(plan)
    )


@once_per_object
def count_conditions(plan: Node) -> int:
    """How many operators drop rows by a condition; each may drop most of them."""
    return sum(traits_of(node).reduces is Reduction.CONDITION for node in walk(plan))


def is_selective(node: Node) -> bool:
    """Whether it is a filter that drops more than the NULLs which a join drops anyway."""
    return isinstance(node, Filter) and traits_of(node).reduces is Reduction.CONDITION
