# SPDX-License-Identifier: Apache-2.0
"""Decodes Spark's physical operators into nodes: one small function per operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from volley.errors import CaptureError
from volley.plan.counter_diffs import expand_counter_diff
from volley.plan.expressions import (
    AggregateCall,
    Alias,
    Attribute,
    Call,
    Expression,
    SortKey,
    WindowCall,
    attribute_of,
    transform,
)
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    JoinKind,
    Limit,
    Node,
    NumberedRows,
    Observe,
    OneRow,
    Partitioning,
    Project,
    Range,
    Sample,
    Sort,
    TopN,
    Union,
    Unknown,
    Window,
)
from volley.plan.observed_metrics import OBSERVING, compute_metrics
from volley.plan.types import merge_nullability


@dataclass(frozen=True)
class Operator:
    """One physical operator: its expressions and other fields by name, and its decoded children."""

    name: str
    expressions: dict[str, Any]
    values: dict[str, Any]
    children: tuple[Node, ...]

    def all(self, field: str) -> tuple[Any, ...]:
        """The expressions of a field that holds a list of them."""
        found: tuple[Any, ...] = self.expressions.get(field, ())
        return found

    def one(self, field: str) -> Any:
        """The expression of a field that holds at most one."""
        return self.expressions.get(field)

    def value(self, field: str) -> Any:
        """The value of another field. An unreadable field is an error, never a default."""
        if field not in self.values:
            raise CaptureError(f"{field} of {self.name} could not be read.")
        return self.values[field]


Decoder = Callable[[Operator], Node]
DECODERS: dict[str, Decoder] = {}

# Operators that move or wrap rows for Spark's own runtime without changing them.
TRANSPARENT = (
    "WholeStageCodegenExec",
    "InputAdapter",
    "ColumnarToRowExec",
    "RowToColumnarExec",
    "AQEShuffleReadExec",
    "SubqueryExec",
    "CoalesceExec",
    # Only an early filter: the rank filter above drops the same rows.
    "WindowGroupLimitExec",
)


def decodes(*names: str) -> Callable[[Decoder], Decoder]:
    """Register a function as the decoder of these operators."""

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
    # A node that emits state does so under other ids than its buffers have; they correspond by position.
    gives_state = calls and not any(call.mode.gives_values for call in calls)
    buffers = results[len(grouping) :] if gives_state else operator.all("aggregateAttributes")
    return Aggregate(grouping, calls, buffers, results, operator.children[0])


@decodes("SortExec")
def _sort(operator: Operator) -> Node:
    return Sort(operator.all("sortOrder"), operator.value("global"), operator.children[0])


@decodes("LocalLimitExec")
def _local_limit(operator: Operator) -> Node:
    return Limit(operator.value("limit"), 0, whole=False, child=operator.children[0])


@decodes("GlobalLimitExec", "CollectLimitExec")
def _limit(operator: Operator) -> Node:
    offset = operator.value("offset")
    count = operator.value("limit")
    # Spark's limit includes the skipped rows; -1 means no limit.
    return Limit(
        None if count < 0 else max(0, count - offset), offset, whole=True, child=operator.children[0]
    )


@decodes("TakeOrderedAndProjectExec")
def _top_n(operator: Operator) -> Node:
    offset = operator.value("offset")
    return TopN(
        max(0, operator.value("limit") - offset),
        offset,
        operator.all("sortOrder"),
        operator.all("projectList"),
        operator.children[0],
    )


@decodes("UnionExec")
def _union(operator: Operator) -> Node:
    # A union has the ids and names of its first child, and NULLs where any child has them.
    first, *others = (child.output for child in operator.children)
    output = list(first)
    for branch in others:
        output = [
            replace(a, type=merge_nullability(a.type, b.type), nullable=bool(a.nullable or b.nullable))
            for a, b in zip(output, branch, strict=True)
        ]
    return Union(tuple(output), operator.children)


@decodes("ExpandExec")
def _expand(operator: Operator) -> Node:
    return Expand(operator.all("projections"), operator.all("output"), operator.children[0])


# Generators whose rows Spark's code can give as an array. Catalyst says that this is what they are.
_OF_ONE_ROW = frozenset({"JsonTuple"})


@decodes("GenerateExec")
def _generate(operator: Operator) -> Node:
    generator = operator.one("generator")
    if not isinstance(generator, Call):
        return unknown(operator)
    function, arguments = generator.function, generator.arguments
    if function in _OF_ONE_ROW:
        function, arguments = "Inline", (generator,)
    return Generate(
        function,
        arguments,
        operator.all("requiredChildOutput"),
        operator.value("outer"),
        operator.all("generatorOutput"),
        operator.children[0],
    )


@decodes("WindowExec")
def _window(operator: Operator) -> Node:
    columns: tuple[Expression, ...] = operator.all("windowExpression")
    (child,) = operator.children
    partition, order = operator.all("partitionSpec"), operator.all("orderSpec")

    def with_keys(part: Expression) -> Expression:
        if not isinstance(part, WindowCall):
            return part
        return expand_counter_diff(replace(part, partition_by=partition, order_by=order))

    # The keys of the operator count. In a LATERAL subquery Spark adds to them the columns by which the subquery is
    # correlated, but not to the calls, and repeats these columns.
    aliases = [column for column in columns if isinstance(column, Alias)]
    window = Window(
        tuple(replace(alias, child=transform(alias.child, with_keys)) for alias in aliases), child
    )
    if len(aliases) == len(columns):
        return window
    return Project((*child.output, *map(attribute_of, columns)), window)


@decodes("ShuffleExchangeExec")
def _exchange(operator: Operator) -> Node:
    child = operator.children[0]
    kind = operator.value("outputPartitioning")
    partitions = operator.value("numPartitions")
    layout = operator.one("outputPartitioning")
    keys = layout.arguments if layout else ()
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
        return unknown(operator, operator.value("joinType"))
    build = operator.values.get("buildSide")
    return Join(
        kind=kind,
        left_keys=operator.all("leftKeys"),
        right_keys=operator.all("rightKeys"),
        condition=operator.one("condition"),
        build=BuildSide(build) if build else None,
        left=left,
        right=right,
        null_aware=operator.values.get("isNullAwareAntiJoin", False),
        exists=exists,
    )


def _join_kind(operator: Operator) -> tuple[JoinKind | None, Attribute | None]:
    if operator.name == "CartesianProductExec":
        return JoinKind.INNER, None
    name = operator.value("joinType")
    if name == "Cross":
        return JoinKind.INNER, None
    return (JoinKind(name), operator.one("exists")) if name in set(JoinKind) else (None, None)


@decodes(OBSERVING)
def _observe(operator: Operator) -> Node:
    (rows,) = operator.children
    metrics: tuple[Expression, ...] = operator.all("metricExpressions")
    return Observe(str(operator.value("name")), compute_metrics(metrics, rows), rows)


@decodes("RangeExec")
def _range(operator: Operator) -> Node:
    start, end, step = (operator.value(field) for field in ("start", "end", "step"))
    return Range(start, end, step, operator.all("output"))


@decodes("SampleExec")
def _sample(operator: Operator) -> Node:
    lower, upper = float(operator.value("lowerBound")), float(operator.value("upperBound"))
    replacement, seed = operator.value("withReplacement"), operator.value("seed")
    return Sample(lower, upper, replacement, seed, operator.children[0])


@decodes("AttachDistributedSequenceExec")
def _numbered_rows(operator: Operator) -> Node:
    return NumberedRows(operator.one("sequenceAttr"), operator.children[0])


@decodes("OneRowRelationExec")
def _one_row(operator: Operator) -> Node:
    return OneRow()


def unknown(operator: Operator, detail: str = "") -> Node:
    output = tuple(item for item in operator.all("output") if isinstance(item, Attribute))
    if not output and operator.children:
        output = operator.children[0].output
    return Unknown(operator.name, detail, output, operator.children)
