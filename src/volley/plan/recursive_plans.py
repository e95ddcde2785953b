# SPDX-License-Identifier: Apache-2.0
"""Reads recursive queries: WITH RECURSIVE is one operator of Spark's plan, which plans and runs each step by itself.

    Recursion
      anchor            the first rows
      step              over a RecursionInput, the rows of the step before

A step is planned once. The driver runs it again and again (`bridge.recursion`), until it gives no rows.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from py4j.protocol import Py4JError

from volley.errors import CaptureError
from volley.plan.compiled_class import CompiledClass
from volley.plan.jvm import Java
from volley.plan.nodes import Node, RecursionInput, transform
from volley.plan.reader import describe_error
from volley.plan.subqueries import with_subqueries

RECURSION = "UnionLoopExec"

_ids = itertools.count()
_lock = threading.Lock()
_classes: weakref.WeakKeyDictionary[Java, CompiledClass] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class RecursiveQuery:
    """`limit`, `level_limit` and `row_limit` are None for no limit."""

    anchor: Java
    step: Java
    inputs: tuple[tuple[int, ...], ...]
    limit: int | None
    level_limit: int | None
    row_limit: int | None
    id: int = field(default_factory=lambda: next(_ids))


def read_recursion(gateway: Java, operator: Java) -> RecursiveQuery | str:
    """The plans of a recursive query, or why only Spark can run it."""
    with _lock:
        if gateway not in _classes:
            _classes[gateway] = CompiledClass(gateway, "RecursivePlans.java")
        reader = _classes[gateway]
    try:
        loop = reader.get().read(operator)
        if refusal := loop.refusal():
            return str(refusal)
        inputs = tuple(tuple(map(int, line.split(","))) for line in str(loop.inputs()).splitlines())
        limit, level_limit, row_limit = (_limit(text) for text in str(loop.limits()).split(","))
        return RecursiveQuery(loop.anchor(), loop.step(), inputs, limit, level_limit, row_limit)
    except (CaptureError, Py4JError, ValueError) as error:
        return describe_error(error)


def _limit(text: str) -> int | None:
    return None if int(text) < 0 else int(text)


def mark_inputs(step: Node, query: RecursiveQuery) -> Node:
    """The plan of a step with a `RecursionInput` for each scan of the rows of the step before."""

    def change(node: Node) -> Node:
        if not node.children and tuple(column.id for column in node.output) in query.inputs:
            return RecursionInput(query.id, node.output)
        return node

    return replace_leaves(step, change)


def replace_leaves(plan: Node, change: Callable[[Node], Node]) -> Node:
    """The plan with `change` applied to every node, those of subqueries too."""
    return with_subqueries(transform(plan, change), lambda inner: replace_leaves(inner, change))
