# SPDX-License-Identifier: Apache-2.0
"""Places exchanges where rows must move between tasks, and nowhere else.

Spark's exchanges say where *it* would move rows, over its own partitions. This pass keeps those that move rows between
Volley's tasks, drops the others, and adds those that Volley needs and Spark did not. With one worker every stage has
one task, so every exchange is dropped and the whole query is one fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from volley.plan.expressions import Alias, Attribute, Expression, canonicalize
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    CachedRows,
    Exchange,
    FileScan,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    MaterializedInput,
    Node,
    OneRow,
    PartitionedRows,
    Partitioning,
    Range,
    Sort,
    SourceScan,
    TopN,
    Union,
    WriteFiles,
    transform,
    walk,
    with_children,
)
from volley.plan.traits import TRAITS, below_row_by_row, traits_of
from volley.stages.distribution import (
    Distribution,
    Keys,
    propagate,
)
from volley.stages.limits import PlannerLimits, within
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import cost_bytes, scan_tasks
from volley.stages.selectivity import is_selective

Placed = tuple[Node, Distribution]

SINGLE = Distribution(1)


def place_exchanges(plan: Node, workers: int, limits: PlannerLimits) -> Node:
    """The plan with exactly the exchanges that `workers` tasks per stage need."""
    return _Placement(workers, limits, _first_halves(plan)).place(plan)[0]


class _Placement:
    def __init__(self, workers: int, limits: PlannerLimits, first_halves: frozenset[int]) -> None:
        self._workers = workers
        self._limits = limits
        self._first_halves = first_halves

    def place(self, node: Node) -> Placed:
        """The sub-plan with its exchanges placed, and its distribution."""
        match node:
            case FileScan() | SourceScan():
                return node, Distribution(scan_tasks(node, self._workers, self._limits))
            case LocalRows() | CachedRows() | PartitionedRows() | Range() | OneRow():
                return node, SINGLE
            case MaterializedInput():
                return node, Distribution(node.partitions)
            case Exchange():
                return self._exchange(node)
            case Sort():
                return self._sort(node)
            case Limit():
                return self._limit(node)
            case TopN():
                return self._top(node)
            case Join():
                return self._join(node)
            case Union():
                return self._union(node)
            case WriteFiles() if node.files and not node.numbered:
                return self._write(node, node.files)
            case _ if type(node) in TRAITS and len(node.children) == 1:
                return self._over_one_child(node)
            case _:
                raise TypeError(f"{type(node).__name__} cannot be in a plan that runs natively")

    def _over_one_child(self, node: Node) -> Placed:
        """Any operator that only needs certain rows in one task."""
        placed = self.place(node.children[0])
        together = traits_of(node).together
        if together is not None and id(node) not in self._first_halves:
            placed = self._cluster(placed, together)
        child, at = placed
        return with_children(node, (child,)), propagate(at, node)

    def _exchange(self, node: Exchange) -> Placed:
        child, at = self.place(node.child)
        match node.partitioning:
            case Partitioning.SINGLE | Partitioning.RANGE:
                # Nothing above can tell one task from ranges over several, and one task meets every requirement.
                return self._gather((child, at))
            case Partitioning.HASH:
                keys = tuple(canonicalize(key) for key in node.keys)
                return (child, at) if keys in at.hashed_by else self._hash((child, at), node.keys)
            case Partitioning.ROUND_ROBIN if at.tasks < self._workers:
                even = Exchange(Partitioning.ROUND_ROBIN, self._workers, (), (), child)
                return even, Distribution(self._workers)
            case _:
                return child, at

    def _sort(self, node: Sort) -> Placed:
        if not node.whole:
            child, at = self.place(node.child)
            return replace(node, child=child), at
        below = node.child
        if isinstance(below, Exchange) and below.partitioning is Partitioning.RANGE:
            below = below.child
        child, at = self.place(below)
        if not at.single:
            # Each task sorts its share; the single reader merges the sorted shares.
            child, at = self._gather((Sort(node.keys, whole=False, child=child), at))
        return replace(node, child=child), at

    def _limit(self, node: Limit) -> Placed:
        child, at = self.place(node.child)
        if node.whole and not at.single:
            if node.count is not None:
                child = Limit(node.count + node.offset, 0, whole=False, child=child)
            child, at = self._gather((child, at))
        return replace(node, child=child), at

    def _top(self, node: TopN) -> Placed:
        child, at = self.place(node.child)
        if not at.single:
            share = TopN(node.count + node.offset, 0, node.keys, child.output, child)
            child, at = self._gather((share, at))
        return replace(node, child=child), at

    def _union(self, node: Union) -> Placed:
        placed = [self.place(child) for child in node.inputs]
        tasks = max((at.tasks for _, at in placed), default=1)
        inputs = []
        for child, at in placed:
            if at.single and tasks > 1 and not _can_be_shared(child):
                # Only one of several tasks may add these rows: a separate stage, which only task 0 reads.
                child = Exchange(Partitioning.SINGLE, 1, (), (), child)
            inputs.append(child)
        return replace(node, inputs=tuple(inputs)), Distribution(tasks)

    def _write(self, node: WriteFiles, files: int) -> Placed:
        """Each task writes some of the files (`layout.share_files`), so there cannot be more tasks."""
        child, at = self.place(node.child)
        if files == 1:
            child, at = self._gather((child, at))
        elif files < at.tasks:
            child = Exchange(Partitioning.ROUND_ROBIN, files, (), (), child)
            at = Distribution(files)
        return replace(node, child=child), at

    # ---------------------------------------------------------------------------------------- joins

    def _join(self, node: Join) -> Placed:
        left, right = self.place(node.left), self.place(node.right)
        if left[1].single and right[1].single:
            return _join_placed(node, left, right, SINGLE)
        match self._broadcast_side(node):
            case BuildSide.RIGHT if left[1].single:
                return _join_placed(node, left, self._gather(right), SINGLE)
            case BuildSide.LEFT if right[1].single:
                return _join_placed(node, self._gather(left), right, SINGLE)
            case BuildSide.RIGHT:
                return _join_placed(node, left, self._replicate(right, _lookup_columns(node)), left[1])
            case BuildSide.LEFT:
                return _join_placed(node, self._replicate(left), right, right[1])
        if not node.left_keys or node.null_aware or _key_types_differ(node):
            return _join_placed(node, self._gather(left), self._gather(right), SINGLE)
        left, right = map(self._isolate_small_side, self._colocate(node, left, right))
        return _join_placed(node, left, right, _distribution_of_join(node, left[1], right[1]))

    def _broadcast_side(self, node: Join) -> BuildSide | None:
        """The side that every task may see whole: Spark's choice, or any side of a join without keys."""
        without_keys = not node.left_keys or node.null_aware
        divisible = traits_of(node).divisible
        if (_is_broadcast(node.right) or without_keys) and 0 in divisible:
            return BuildSide.RIGHT
        if (_is_broadcast(node.left) or without_keys) and 1 in divisible:
            return BuildSide.LEFT
        return None

    def _colocate(self, node: Join, left: Placed, right: Placed) -> tuple[Placed, Placed]:
        """Bring rows with equal keys into the same task, moving as few sides as possible."""
        left_keys = tuple(canonicalize(key) for key in node.left_keys)
        right_keys = tuple(canonicalize(key) for key in node.right_keys)
        pairs = set(zip(left_keys, right_keys, strict=True))
        for mine in left[1].hashed_by:
            for theirs in right[1].hashed_by:
                if len(mine) == len(theirs) and pairs.issuperset(zip(mine, theirs, strict=True)):
                    return left, right
        for mine in left[1].hashed_by:
            if set(mine) <= set(left_keys):
                return left, self._hash(right, [node.right_keys[left_keys.index(key)] for key in mine])
        for theirs in right[1].hashed_by:
            if set(theirs) <= set(right_keys):
                return self._hash(left, [node.left_keys[right_keys.index(key)] for key in theirs]), right
        return self._hash(left, node.left_keys), self._hash(right, node.right_keys)

    def _isolate_small_side(self, placed: Placed) -> Placed:
        """Put a side of a join into its own stage if it may prove so small that the other side need not be exchanged:
        groups of which a condition keeps only some.
        """
        node, at = placed
        below = node
        while traits_of(below).row_by_row:
            (child,) = below.children
            if is_selective(below) and isinstance(child, Aggregate) and not is_partial(child):
                keys = min(at.hashed_by, key=len)
                return Exchange(Partitioning.HASH, self._workers, keys, (), node), at
            below = child
        return placed

    # ------------------------------------------------------------------------------------ exchanges

    def _cluster(self, placed: Placed, keys: Sequence[Expression]) -> Placed:
        """Bring rows with equal `keys` into one task; without keys, all rows."""
        if placed[1].single or (keys and placed[1].clusters(keys)):
            return placed
        return self._hash(placed, [_value(key) for key in keys]) if keys else self._gather(placed)

    def _hash(self, placed: Placed, keys: Sequence[Expression]) -> Placed:
        if self._workers == 1:
            # Only rows that are in the stores already can be in several tasks.
            return self._gather(placed)
        exchange = Exchange(Partitioning.HASH, self._workers, tuple(keys), (), _drop_exchange(placed[0]))
        at: Keys = tuple(canonicalize(key) for key in keys)
        return exchange, Distribution(self._workers, frozenset({at}))

    def _gather(self, placed: Placed) -> Placed:
        if placed[1].single:
            return placed
        return Exchange(Partitioning.SINGLE, 1, (), (), _drop_exchange(placed[0])), SINGLE

    def _replicate(self, placed: Placed, lookup_columns: tuple[Attribute, ...] = ()) -> Placed:
        """Bring all rows into every task: each computes them from small files, or they are computed once and broadcast.

        If only the values of `lookup_columns` matter, a task sends each once: every reader builds a hash table of them.
        """
        child = _drop_exchange(placed[0])
        if self._costs_less_than_a_stage(child):
            return transform(
                child, lambda n: replace(n, whole=True) if isinstance(n, FileScan) else n
            ), placed[1]
        if lookup_columns:
            child = Aggregate(lookup_columns, (), (), lookup_columns, child)
        return Exchange(Partitioning.BROADCAST, 1, (), (), child), placed[1]

    def _costs_less_than_a_stage(self, node: Node) -> bool:
        parts = list(walk(node))
        leaves = [part for part in parts if not part.children]
        if any(isinstance(part, Exchange) for part in parts) or not gives_same_rows(node):
            return False
        scans = [leaf for leaf in leaves if isinstance(leaf, FileScan)]
        cost = sum(cost_bytes(scan, self._limits) for scan in scans)
        return len(scans) == len(leaves) and within(cost, self._limits.replicated_scan_bytes)


def _drop_exchange(node: Node) -> Node:
    """Drop an exchange whose rows are exchanged again at once."""
    return node.child if isinstance(node, Exchange) else node


def _lookup_columns(join: Join) -> tuple[Attribute, ...]:
    """The right side's key columns, if the join only checks whether their values occur."""
    kinds = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)
    if join.kind not in kinds or join.condition is not None or join.null_aware:
        return ()
    columns = tuple(dict.fromkeys(key for key in join.right_keys if isinstance(key, Attribute)))
    return columns if len(columns) == len(join.right_keys) else ()


def _join_placed(node: Join, left: Placed, right: Placed, at: Distribution) -> Placed:
    return replace(node, left=left[0], right=right[0]), at


def _distribution_of_join(node: Join, left: Distribution, right: Distribution) -> Distribution:
    match node.kind:
        case JoinKind.INNER:
            return Distribution(left.tasks, left.hashed_by | right.hashed_by)
        case JoinKind.RIGHT:
            return right
        case JoinKind.FULL:
            # Rows of either side carry NULL in the other side's keys.
            return left.without_keys()
        case _:
            return left


def _is_broadcast(node: Node) -> bool:
    return isinstance(node, Exchange) and node.partitioning is Partitioning.BROADCAST


def _key_types_differ(node: Join) -> bool:
    """Equal values of two types may hash differently."""
    return any(left.type != right.type for left, right in zip(node.left_keys, node.right_keys, strict=True))


def is_partial(node: Aggregate) -> bool:
    """Whether the node reduces rows to state, which a later aggregate merges."""
    return traits_of(node).together is None


def _first_halves(plan: Node) -> frozenset[int]:
    """The ids (by identity) of aggregates that only reduce what another groups in the same way after the exchange.

    An aggregate without calls has no mode to tell which half of a DISTINCT it is.
    """
    halves = set()
    for upper in walk(plan):
        if isinstance(upper, Aggregate) and not upper.calls:
            lower = upper.child.child if isinstance(upper.child, Exchange) else upper.child
            same = {canonicalize(key) for key in upper.grouping} == {canonicalize(a) for a in lower.output}
            if isinstance(lower, Aggregate) and not lower.calls and same:
                halves.add(id(lower))
    return frozenset(halves)


def _can_be_shared(node: Node) -> bool:
    """Whether several tasks can run it over shares of its splits and together produce each row once."""
    return isinstance(below_row_by_row(node), FileScan | SourceScan)


def _value(expression: Expression) -> Expression:
    return expression.child if isinstance(expression, Alias) else expression
