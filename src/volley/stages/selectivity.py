# SPDX-License-Identifier: Apache-2.0
"""Whether a plan may give far fewer rows than it reads: only then is it worth waiting to see how many."""

from __future__ import annotations

from volley.plan.nodes import Filter, Join, Node, walk
from volley.plan.traits import Reduction, traits_of


def may_shrink(plan: Node) -> bool:
    return any(traits_of(node).reduces is not Reduction.NONE for node in walk(plan))


def leaves_out(plan: Node) -> bool:
    """Whether the plan itself may give far fewer rows than its inputs have. A semi join leaves out as much as these."""
    return any(
        not isinstance(node, Join) and traits_of(node).reduces is not Reduction.NONE for node in walk(plan)
    )


def conditions(plan: Node) -> int:
    """How many of its operators leave rows out; each may leave out most."""
    return sum(traits_of(node).reduces is Reduction.CONDITION for node in walk(plan))


def is_selective(node: Node) -> bool:
    """Whether it is a filter for more than the NULLs that a join drops anyway."""
    return isinstance(node, Filter) and traits_of(node).reduces is Reduction.CONDITION
