"""From Spark's physical operators, one JSON entry each, to our nodes: one small function an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from volley.plan.decode_expressions import Json, attribute, short_name
from volley.plan.expressions import AggregateCall, Alias, Attribute, Expression, SortKey
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    Expand,
    Filter,
    Join,
    JoinKind,
    Limit,
    Node,
    OneRow,
    Partitioning,
    Project,
    Sort,
    TopN,
    Union,
    Unknown,
    Window,
)


@dataclass(frozen=True)
class Operator:
    """One physical operator: its JSON entry, its expressions by field name, and its decoded children."""

    json: Json
    expressions: dict[str, tuple[Expression, ...]]
    children: tuple[Node, ...]

    @property
    def name(self) -> str:
        return short_name(self.json["class"])

    def all(self, field: str) -> tuple[Any, ...]:
        return self.expressions.get(field, ())

    def one(self, field: str) -> Any:
        found = self.expressions.get(field, ())
        return found[0] if found else None


Decoder = Callable[[Operator], Node]
DECODERS: dict[str, Decoder] = {}

# Operators that move or wrap rows for Spark's own runtime and change none of them.
TRANSPARENT = (
    "WholeStageCodegenExec",
    "InputAdapter",
    "ColumnarToRowExec",
    "RowToColumnarExec",
    "AQEShuffleReadExec",
    "SubqueryExec",
    "CoalesceExec",
    # Only drops rows early that the rank filter above drops anyway.
    "WindowGroupLimitExec",
)


def decodes(*names: str) -> Callable[[Decoder], Decoder]:
    def register(decoder: Decoder) -> Decoder:
        for name in names:
            DECODERS[name] = decoder
        return decoder

    return register


@decodes("ProjectExec")
def _project(operator: Operator) -> Node:
    return Project(operator.all("projectList"), operator.children[0])


@decodes("FilterExec")
def _filter(operator: Operator) -> Node:
    return Filter(operator.one("condition"), operator.children[0])


@decodes("HashAggregateExec", "SortAggregateExec", "ObjectHashAggregateExec")
def _aggregate(operator: Operator) -> Node:
    grouping = operator.all("groupingExpressions")
    calls: tuple[AggregateCall, ...] = operator.all("aggregateExpressions")
    results = operator.all("resultExpressions")
    # A node that gives state names it by other ids than its buffers have; the two correspond by position.
    gives_state = calls and not any(call.mode.gives_values for call in calls)
    buffers = results[len(grouping) :] if gives_state else operator.all("aggregateAttributes")
    return Aggregate(grouping, calls, buffers, results, operator.children[0])


@decodes("SortExec")
def _sort(operator: Operator) -> Node:
    return Sort(operator.all("sortOrder"), operator.json["global"], operator.children[0])


@decodes("LocalLimitExec")
def _local_limit(operator: Operator) -> Node:
    return Limit(operator.json["limit"], 0, False, operator.children[0])


@decodes("GlobalLimitExec", "CollectLimitExec")
def _limit(operator: Operator) -> Node:
    offset = operator.json.get("offset", 0)
    count = operator.json["limit"]
    # Spark's limit counts from the first row, the skipped ones included; -1 is no limit.
    return Limit(None if count < 0 else max(0, count - offset), offset, True, operator.children[0])


@decodes("TakeOrderedAndProjectExec")
def _top_n(operator: Operator) -> Node:
    offset = operator.json.get("offset", 0)
    return TopN(
        max(0, operator.json["limit"] - offset),
        offset,
        operator.all("sortOrder"),
        operator.all("projectList"),
        operator.children[0],
    )


@decodes("UnionExec")
def _union(operator: Operator) -> Node:
    # Union has no output of its own in JSON: it takes the ids and names of its first child.
    return Union(operator.children[0].output, operator.children)


@decodes("ExpandExec")
def _expand(operator: Operator) -> Node:
    output: tuple[Attribute, ...] = operator.all("output")
    flat = operator.all("projections")
    width = len(output)
    projections = tuple(flat[start : start + width] for start in range(0, len(flat), width))
    return Expand(projections, output, operator.children[0])


@decodes("WindowExec")
def _window(operator: Operator) -> Node:
    calls: tuple[Alias, ...] = operator.all("windowExpression")
    return Window(calls, operator.children[0])


@decodes("ShuffleExchangeExec")
def _exchange(operator: Operator) -> Node:
    child = operator.children[0]
    layout = operator.json["outputPartitioning"]
    entry = layout[0] if isinstance(layout, list) else layout
    kind = short_name(entry.get("class") or entry.get("product-class") or entry["object"])
    partitions = entry.get("numPartitions", 1)
    layout_expression = operator.one("outputPartitioning")
    keys = layout_expression.arguments if layout_expression else ()
    match kind:
        case "HashPartitioning":
            return Exchange(Partitioning.HASH, partitions, keys, (), child)
        case "RangePartitioning":
            order: tuple[SortKey, ...] = keys
            return Exchange(Partitioning.RANGE, partitions, (), order, child)
        case "RoundRobinPartitioning":
            return Exchange(Partitioning.ROUND_ROBIN, partitions, (), (), child)
        case "SinglePartition":
            return Exchange(Partitioning.SINGLE, 1, (), (), child)
        case _:
            return unknown(operator, kind)


@decodes("BroadcastExchangeExec")
def _broadcast(operator: Operator) -> Node:
    return Exchange(Partitioning.BROADCAST, 1, (), (), operator.children[0])


@decodes(
    "BroadcastHashJoinExec",
    "ShuffledHashJoinExec",
    "SortMergeJoinExec",
    "BroadcastNestedLoopJoinExec",
    "CartesianProductExec",
)
def _join(operator: Operator) -> Node:
    left, right = operator.children
    kind, exists = _join_kind(operator)
    if kind is None:
        return unknown(operator, str(operator.json.get("joinType")))
    build = operator.json.get("buildSide")
    return Join(
        kind=kind,
        left_keys=operator.all("leftKeys"),
        right_keys=operator.all("rightKeys"),
        condition=operator.one("condition"),
        build=BuildSide(short_name(build["object"])) if build else None,
        left=left,
        right=right,
        null_aware=operator.json.get("isNullAwareAntiJoin", False),
        exists=exists,
    )


def _join_kind(operator: Operator) -> tuple[JoinKind | None, Attribute | None]:
    if operator.name == "CartesianProductExec":
        return JoinKind.INNER, None
    join_type = operator.json["joinType"]
    if "object" in join_type:
        name = short_name(join_type["object"])
        if name == "Cross":
            return JoinKind.INNER, None
        return (JoinKind(name), None) if name in set(JoinKind) else (None, None)
    if short_name(join_type.get("product-class", "")) == "ExistenceJoin":
        return JoinKind.EXISTENCE, attribute(join_type["exists"][0])
    return None, None


@decodes("OneRowRelationExec")
def _one_row(operator: Operator) -> Node:
    return OneRow()


def unknown(operator: Operator, detail: str = "") -> Node:
    output = tuple(item for item in operator.all("output") if isinstance(item, Attribute))
    if not output and operator.children:
        output = operator.children[0].output
    return Unknown(operator.name, detail, output, operator.children)
