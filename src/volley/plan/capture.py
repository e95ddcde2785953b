"""From a DataFrame to its plan as plain data: one JSON call, one pass over the expressions and one over
the scans for what JSON leaves out, and a few calls for rarer sources."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

from volley.errors import CaptureError
from volley.plan.decode_expressions import Json, Lookups, decode, short_name
from volley.plan.decode_nodes import DECODERS, TRANSPARENT, Operator, unknown
from volley.plan.details import DetailReader
from volley.plan.expressions import Alias, Expression
from volley.plan.file_scans import FileScanReader
from volley.plan.jvm import Java, Jvm, answer_promptly
from volley.plan.nodes import Node, Project
from volley.plan.sources import SourceReader

# Nested CASE doubles with every level in Spark's JSON; past this it is cheaper to let Spark run the query.
MAX_JSON_CHARACTERS = 32 << 20

# Fields that hold a plan, not an expression.
_PLAN_FIELDS = frozenset({"child", "plan", "inputPlan", "currentPhysicalPlan", "left", "right", "range"})

_captures: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()


class Origins:
    """Which operator of Spark each captured node stands for. Nodes are known by identity, so they are kept."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Node, Callable[[], Java]]] = {}

    def add(self, node: Node, operator: Callable[[], Java]) -> None:
        self._found.setdefault(id(node), (node, operator))

    def of(self, node: Node) -> Java | None:
        """The operator; None for a node that no single one stands for."""
        found = self._found.get(id(node))
        return found[1]() if found else None


def capture(gateway: Java, physical_plan: Java, origins: Origins | None = None) -> Node:
    """The plan that Spark would execute. Raises CaptureError where something could only be guessed.

    `origins` learns where each node comes from.
    """
    if gateway not in _captures:
        _captures[gateway] = Capture(gateway)
    answer_promptly(gateway)
    return _captures[gateway].read(physical_plan, origins)


class Capture:
    """The readers of one gateway; making them costs some hundred small calls, so they are kept."""

    def __init__(self, gateway: Java) -> None:
        jvm = Jvm(gateway)
        self._details = DetailReader(jvm)
        self._sources = SourceReader(jvm)
        self._file_scans = FileScanReader(jvm)
        self._separator = jvm.separator(1)

    def read(self, plan: Java, origins: Origins | None = None) -> Node:
        plan = _without_adaptive_wrapper(plan)
        text = plan.toJSON()
        if len(text) > MAX_JSON_CHARACTERS:
            raise CaptureError(f"the plan's description takes {len(text) >> 20} MiB.")
        return _PlanDecoder(json.loads(text), plan, self, origins).decode()


class _PlanDecoder:
    """Decodes one plan; keeps the position in the depth-first list of its operators."""

    def __init__(self, operators: list[Json], plan: Java, capture: Capture, origins: Origins | None) -> None:
        self._origins = origins
        self._operators = operators
        self._plan = plan
        self._capture = capture
        self._details = capture._details.read(plan)
        if len(operators) != len(self._details):
            raise CaptureError("the JSON of a plan has another shape than the plan.")
        self._next = 0
        self._leaves = [index for index, entry in enumerate(operators) if not entry["num-children"]]

    @cached_property
    def _nodes(self) -> Java:
        return self._capture._details.nodes(self._plan)

    @cached_property
    def _file_scans(self) -> list[str]:
        return self._capture._file_scans.read(self._plan)

    def decode(self) -> Node:
        index = self._next
        node = self._decode()
        if self._origins is not None:
            self._origins.add(node, lambda: self._nodes.apply(index))
        return node

    def _decode(self) -> Node:
        index, self._next = self._next, self._next + 1
        entry = self._operators[index]
        name = short_name(entry["class"])
        children = tuple(self.decode() for _ in range(entry["num-children"]))
        if name in TRANSPARENT:
            return children[0]
        operator = Operator(entry, self._expressions(index, entry), children)
        if name == "AdaptiveSparkPlanExec":
            return self._capture.read(self._nodes.apply(index), self._origins)
        if name == "ReusedSubqueryExec":
            return self._capture.read(self._nodes.apply(index).child())
        if name == "ReusedExchangeExec":
            return self._reused(operator, self._nodes.apply(index))
        if name == "FileSourceScanExec":
            text = self._file_scans[self._leaves.index(index)]
            return self._capture._file_scans.decode(operator, text, lambda: self._nodes.apply(index))
        if source := self._capture._sources.decoder(name):
            return source(operator, self._nodes.apply(index))
        if decoder := DECODERS.get(name):
            return decoder(operator)
        return unknown(operator)

    def _reused(self, operator: Operator, node: Java) -> Node:
        """An exchange that stands elsewhere too, under other ids here; `stages` merges the two again."""
        shared = self._capture.read(node.child(), self._origins)
        renamed = tuple(
            Alias(new.id, new.name, old)
            for new, old in zip(operator.all("output"), shared.output, strict=True)
        )
        return Project(renamed, shared)

    # ---------------------------------------------------------------------------------- expressions

    def _expressions(self, index: int, entry: Json) -> dict[str, tuple[Expression, ...]]:
        fields = {name: _trees(value) for name, value in entry.items() if name not in _PLAN_FIELDS}
        details = self._details[index]
        if sum(len(trees) for trees in fields.values()) != len(details):
            fields = self._flattened(index, entry, fields)
        found: dict[str, tuple[Expression, ...]] = {}
        position = 0
        for name, trees in fields.items():
            decoded = []
            for tree in trees:
                decoded.append(decode(tree, details[position], self._lookups(index, position)))
                position += 1
            if decoded:
                found[name] = tuple(decoded)
        return found

    def _flattened(
        self, index: int, entry: Json, fields: dict[str, list[list[Json]]]
    ) -> dict[str, list[list[Json]]]:
        """Expand's projections, which plan JSON sometimes drops: ask for the JSON of each expression instead."""
        name = short_name(entry["class"])
        if name != "ExpandExec":
            # An operator without a decoder is only named by explain; its expressions are not looked at.
            if name in DECODERS or name == "FileSourceScanExec" or self._capture._sources.decoder(name):
                raise CaptureError(f"the expressions of {name} are not all in its JSON.")
            self._details[index] = []
            return {}
        expressions = self._nodes.apply(index).expressions()
        trees = [json.loads(expressions.apply(i).toJSON()) for i in range(expressions.size())]
        width = len(fields["output"])
        return {"projections": trees[:-width], "output": trees[-width:]}

    def _lookups(self, index: int, position: int) -> Lookups:
        def part(offset: int) -> Java:
            tree = self._nodes.apply(index).expressions().apply(position)
            return self._capture._details.nodes(tree).apply(offset)

        def set_values(offset: int) -> list[str]:
            values = part(offset).hset()
            separator = self._capture._separator
            texts = str(values.mkString(separator)).split(separator) if values.size() else []
            if len(texts) != values.size() or "null" in texts:
                raise CaptureError("the values of an IN list could not be told apart.")
            return texts

        return Lookups(subquery=lambda offset: self._capture.read(part(offset).plan()), set_values=set_values)


def _trees(value: Any) -> list[list[Json]]:
    """The expression trees in a field: it may hold one, a list of them, or lists of lists."""
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], dict):
        return [value] if "num-children" in value[0] else []
    return [tree for item in value for tree in _trees(item)]


def _without_adaptive_wrapper(plan: Java) -> Java:
    return plan.initialPlan() if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec" else plan
