# SPDX-License-Identifier: Apache-2.0
"""What nodes of a plan have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volley.plan.nodes import Node


class UnaryNode:
    """A node with one input."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)
