# SPDX-License-Identifier: Apache-2.0
"""Whether a plan may give far fewer rows than it reads: only then is it worth waiting to see how many."""

from __future__ import annotations

from volley.plan.expressions import Call, Expression, Literal
from volley.plan.nodes import Aggregate, Filter, Join, JoinKind, Limit, Node, TopN, walk


def may_shrink(plan: Node) -> bool:
    # How many groups there are nobody knows.
    return any(isinstance(node, Aggregate) or _is_condition(node) for node in walk(plan))


def leaves_out(plan: Node) -> bool:
    """Whether the plan itself may give far fewer rows than its inputs have. A semi join leaves out as much as these."""
    return any(
        not isinstance(node, Join) and (isinstance(node, Aggregate) or _is_condition(node))
        for node in walk(plan)
    )


def conditions(plan: Node) -> int:
    """How many of its operators leave rows out; each may leave out most."""
    return sum(map(_is_condition, walk(plan)))


def is_selective(node: Node) -> bool:
    """Whether it is a filter for more than the NULLs that a join drops anyway."""
    return isinstance(node, Filter) and not _only_drops_nulls(node.condition)


def _is_condition(node: Node) -> bool:
    match node:
        case Join():
            return node.kind in (JoinKind.SEMI, JoinKind.ANTI)
        case Limit() | TopN():
            return True
        case _:
            return is_selective(node)


def _only_drops_nulls(condition: Expression) -> bool:
    match condition:
        case Call("And", arguments):
            return all(_only_drops_nulls(argument) for argument in arguments)
        case Call("IsNotNull"):
            return True
        case _:
            return isinstance(condition, Literal)
