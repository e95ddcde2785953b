# SPDX-License-Identifier: Apache-2.0
"""Plans how each scan of a cached frame in a captured plan is read. Nothing runs yet.

    kept already                                   its rows are read where they are
    cached, and Volley can compute it              the first query computes it natively and keeps the rows
    cached, and only Spark can compute it          the first query reads Spark's own cache once and keeps the rows
    no longer cached (an older DataFrame)          its plan takes the place of the scan
    anything else                                  Spark scans it

Only plans that give the same rows whoever computes them are computed natively: Spark may compute the frame, too, for a
query that it runs itself, and the frame must have the same rows in both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from volley.bridge.attributes import attribute_of, items
from volley.errors import CaptureError
from volley.frame_cache.cached_batches import CachedBatches
from volley.frame_cache.store import StoredRows, frame_cache
from volley.jvm.programs import Programs
from volley.jvm.serialized_programs import SerializedPrograms
from volley.plan import synthetic_ids
from volley.plan.cached_frames import ScannedFrame, describe_frame
from volley.plan.capture import Origins
from volley.plan.expressions import Alias, Attribute, Expression, InSubquery, ScalarSubquery, SortKey
from volley.plan.expressions import transform as transform_expression
from volley.plan.expressions import walk as walk_expression
from volley.plan.jvm import Java
from volley.plan.nodes import (
    Aggregate,
    CachedRows,
    Node,
    Project,
    Sort,
    SourceScan,
    Unknown,
    Window,
    expressions,
    map_expressions,
    walk,
    with_children,
)
from volley.plan.order import is_ordered, order_of
from volley.plan.subqueries import plans_in
from volley.plan.traits import traits_of
from volley.plan.types import LONG, is_shared
from volley.support.check import check

MAX_SPARK_BYTES = 256 << 20
"""Frames that only Spark can compute are read through the driver's JVM. Larger ones stay in Spark."""

MAX_SENT_BYTES = 32 << 20
"""The most bytes of a frame's columns that are sent with a plan to workers in other processes."""

_TOO_MANY = "the rows would be in the driver's process, and too many to send with each plan"

_SCAN = "InMemoryTableScanExec"

_places = itertools.count(synthetic_ids.CACHED_PLACE)


@dataclass(frozen=True)
class FrameFill:
    """How the rows of a frame are computed: by `plan`, or by Spark where that is None, which scans `relation`.

    With `places`, the position of each row is kept. `programs` belong to the plan.
    """

    frame: ScannedFrame
    output: tuple[Attribute, ...]
    places: bool
    plan: Node | None
    relation: Java
    programs: Programs | SerializedPrograms | None = None

    @property
    def is_storable(self) -> bool:
        """Whether workers can keep the rows, whose order must not matter: stores keep none."""
        return self.plan is not None and not self.places and bool(self.output)


class StoredFill(StoredRows, Protocol):
    """Rows in the stores of workers, and how they were computed."""

    @property
    def fill(self) -> FrameFill: ...


@dataclass(eq=False)
class CachedFrames:
    """The cached frames in the plans of a query. Rows in `held` and `stored` are pinned until the query ends."""

    fills: dict[str, FrameFill] = field(default_factory=dict)
    held: dict[str, CachedBatches] = field(default_factory=dict)
    stored: dict[str, StoredFill] = field(default_factory=dict)

    @property
    def are_read(self) -> bool:
        return bool(self.fills or self.held or self.stored)

    def read_through_spark(self, plans: Iterator[Node]) -> bool:
        """Whether Spark runs tasks to fill a frame that these plans read, or one below it."""
        for plan in plans:
            for scan in _scans(plan):
                fill = self.fills.get(scan.frame)
                if fill is not None and (fill.plan is None or self.read_through_spark(iter([fill.plan]))):
                    return True
        return False

    def release(self) -> None:
        self.held.clear()
        self.stored.clear()


class CapturedPlan(Protocol):
    """A captured plan and its JVM programs."""

    @property
    def plan(self) -> Node: ...

    @property
    def programs(self) -> Programs | SerializedPrograms | None: ...


class FrameScans:
    """Answers the scans of cached frames of one query.

    `capture` reads the plan of a frame; None if that is impossible. With `through_spark`, Spark may fill frames.
    `keeps`: whether frames are kept at all. With `stores`, workers keep them, as far as they can. `max_bytes` limits
    what a scan may read of others, where rows go with the plan.
    """

    def __init__(
        self,
        gateway: Java,
        capture: Callable[[Java], CapturedPlan | None],
        *,
        through_spark: bool,
        keeps: bool,
        stores: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        self.frames = CachedFrames()
        self._gateway = gateway
        self._capture = capture
        self._through_spark = through_spark
        self._keeps = keeps
        self._stores = stores
        self._max_bytes = max_bytes

    def resolve(self, plan: Node, origins: Origins) -> Node:
        """The plan with a replacement for each scan. `origins` records the new nodes."""
        return self._resolve(plan, origins) if next(_scans(plan), None) is not None else plan

    def _resolve(self, plan: Node, origins: Origins) -> Node:
        def change(part: Expression) -> Expression:
            if isinstance(part, ScalarSubquery | InSubquery):
                return replace(part, plan=self.resolve(part.plan, origins))
            return part

        node = with_children(plan, tuple([self._resolve(child, origins) for child in plan.children]))
        if any(isinstance(part, ScalarSubquery | InSubquery) for part in _parts(node)):
            node = map_expressions(node, lambda expression: transform_expression(expression, change))
        if isinstance(node, CachedRows):
            node = self._answer(node, origins.of(node))
        if node is not plan:
            origins.replace(plan, node)
        return node

    def _answer(self, node: CachedRows, scan: Java) -> Node:
        if not self._keeps:
            return _leave(node, "spark.volley.cache.memory is 0")
        cache = frame_cache()
        if (reason := cache.refusal(node.frame)) is not None:
            return _leave(node, reason)
        if self._stores and not node.ordered and (stored := cache.stored(node.frame)) is not None:
            self.frames.stored[node.frame] = cast("StoredFill", stored)
            return _in_order(node, False)
        rows = cache.kept(node.frame)
        if rows is not None and (rows.has_places or not node.ordered):
            if self._max_bytes is not None and rows.column_bytes(node.columns) > self._max_bytes:
                return _leave(node, _TOO_MANY)
            self.frames.held[node.frame] = rows
            return _in_order(node, rows.has_places)
        fill = self.frames.fills.get(node.frame)
        if fill is None or (node.ordered and not fill.places):
            answer = self._plan_fill(node, scan)
            if not isinstance(answer, FrameFill):
                return answer
            fill = self.frames.fills[node.frame] = answer
        return _in_order(node, fill.places)

    def _plan_fill(self, node: CachedRows, scan: Java) -> FrameFill | Node:
        try:
            frame = describe_frame(self._gateway, scan)
        except CaptureError as error:
            return _leave(node, error.message)
        relation = scan.relation()
        captured = self._capture(relation.cachedPlan())
        places = node.ordered or captured is None or order_of(captured.plan).requested
        native = captured is not None and _can_compute(captured.plan, places)
        is_stored = self._stores and frame.registered and native and not places
        if self._max_bytes is not None and frame.estimated_bytes > self._max_bytes and not is_stored:
            return _leave(node, _TOO_MANY)
        if not frame.registered:
            if captured is None or not native or captured.programs is not None:
                return _leave(node, "the frame is no longer cached")
            return _in_place(node, captured.plan)
        if captured is not None and native:
            return FrameFill(frame, captured.plan.output, places, captured.plan, relation, captured.programs)
        output = tuple(map(attribute_of, items(relation.output())))
        if not self._through_spark:
            return _leave(node, "only Spark can compute the frame, and spark.volley.mixed is false")
        if not all(is_shared(attribute.type) for attribute in output):
            return _leave(
                node, "only Spark can compute the frame, and it has a type that the engines hold differently"
            )
        if frame.spark_bytes is not None and frame.spark_bytes > MAX_SPARK_BYTES:
            return _leave(node, too_large(frame.spark_bytes))
        return FrameFill(frame, output, places, None, relation)


def too_large(spark_bytes: int) -> str:
    """Why a frame that Spark has computed is not kept."""
    return (
        f"only Spark can compute the frame, and its {spark_bytes >> 20} MiB are more than the "
        f"{MAX_SPARK_BYTES >> 20} that Volley reads from there"
    )


def _can_compute(plan: Node, in_order: bool) -> bool:
    return check(plan).native and _is_stable(plan) and (not in_order or is_ordered(plan))


def _is_stable(plan: Node) -> bool:
    """Whether Spark's own computation would give the same rows, but for the last bits of floating-point sums."""

    def holds(node: Node) -> bool:
        if isinstance(node, SourceScan):
            return False  # a source may return different rows each time
        traits = traits_of(node)
        if isinstance(node, Aggregate):
            return not traits.needs_order and all(
                call.function.function != "CollectSet" for call in node.calls
            )
        return traits.repeatable or (isinstance(node, Window) and not traits.needs_order)

    return all(map(holds, walk(plan))) and all(map(_is_stable, plans_in(plan)))


def _in_order(node: CachedRows, by_place: bool) -> Node:
    """The rows in the order that a plan may rely on: that in which they were kept, or that of Spark's keys."""
    if not by_place:
        keys, node = node.order, replace(node, order=())
        return Sort(keys, whole=True, child=node) if keys else node
    place = Attribute(next(_places), "place", LONG, False)
    numbered = replace(node, output=(*node.output, place), columns=(*node.columns, -1), order=())
    return Project(
        node.output, Sort((SortKey(place, ascending=True, nulls_first=True),), whole=True, child=numbered)
    )


def _in_place(node: CachedRows, plan: Node) -> Node:
    """The plan of the frame, under the ids of its scan."""
    columns = (plan.output[position] for position in node.columns)
    renamed = Project(
        tuple(Alias(new.id, new.name, old) for new, old in zip(node.output, columns, strict=True)), plan
    )
    return Sort(node.order, whole=True, child=renamed) if node.order and not is_ordered(plan) else renamed


def _leave(node: CachedRows, reason: str) -> Node:
    return Unknown(_SCAN, reason, node.output, ())


def _parts(node: Node) -> Iterator[Expression]:
    for expression in expressions(node):
        yield from walk_expression(expression)


def _scans(plan: Node) -> Iterator[CachedRows]:
    """All scans of cached frames in a plan and its subqueries."""
    for node in walk(plan):
        if isinstance(node, CachedRows):
            yield node
    for subquery in plans_in(plan):
        yield from _scans(subquery)
