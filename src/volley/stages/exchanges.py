# SPDX-License-Identifier: Apache-2.0
"""Exchanges where rows must move, and nowhere else.

Spark's exchanges say where *it* would move rows, over its own partitions. This pass keeps those that move rows between
our tasks, drops the others, and puts in what our layout needs and Spark's did not. With one worker every task count
is one, so every exchange goes and the whole query is one fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from volley.plan.expressions import Alias, Attribute, Expression, plain
from volley.plan.nodes import (
    Aggregate,
    BuildSide,
    Exchange,
    FileScan,
    Join,
    JoinKind,
    Limit,
    LocalRows,
    MaterializedInput,
    Node,
    OneRow,
    Partitioning,
    Range,
    Sort,
    SourceScan,
    TopN,
    Union,
    transform,
    walk,
    with_children,
)
from volley.plan.traits import TRAITS, below_row_by_row, traits_of
from volley.stages.distribution import (
    Distribution,
    Keys,
    through,
)
from volley.stages.limits import PlannerLimits, within
from volley.stages.repeatable import gives_same_rows
from volley.stages.scans import cost_bytes, scan_tasks
from volley.stages.selectivity import is_selective

Placed = tuple[Node, Distribution]

SINGLE = Distribution(1)


def place_exchanges(plan: Node, workers: int, limits: PlannerLimits) -> Node:
    """The same plan with exactly the exchanges that `workers` tasks a stage need."""
    return _Placement(workers, limits, _first_halves(plan)).place(plan)[0]


class _Placement:
    def __init__(self, workers: int, limits: PlannerLimits, first_halves: frozenset[int]) -> None:
        self._workers = workers
        self._limits = limits
        self._first_halves = first_halves

    def place(self, node: Node) -> Placed:
        """The sub-plan with its exchanges placed, and how its rows then lie."""
        match node:
            case FileScan() | SourceScan():
                return node, Distribution(scan_tasks(node, self._workers, self._limits))
            case LocalRows() | Range() | OneRow():
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
            case _ if type(node) in TRAITS and len(node.children) == 1:
                return self._over_one_child(node)
            case _:
                raise TypeError(f"{type(node).__name__} cannot be in a plan that runs natively")

    def _over_one_child(self, node: Node) -> Placed:
        """Any operator that needs no more than certain rows in one task."""
        placed = self.place(node.children[0])
        together = traits_of(node).together
        if together is not None and id(node) not in self._first_halves:
            placed = self._clustered(placed, together)
        child, at = placed
        return with_children(node, (child,)), through(at, node)

    def _exchange(self, node: Exchange) -> Placed:
        child, at = self.place(node.child)
        match node.partitioning:
            case Partitioning.SINGLE | Partitioning.RANGE:
                # Nothing above can tell one task from ranges over several, and one task satisfies everybody.
                return self._gathered((child, at))
            case Partitioning.HASH:
                keys = tuple(plain(key) for key in node.keys)
                return (child, at) if keys in at.hashed_by else self._hashed((child, at), node.keys)
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
            # Each task sorts its share; the one task that reads them merges what is sorted already.
            child, at = self._gathered((Sort(node.keys, False, child), at))
        return replace(node, child=child), at

    def _limit(self, node: Limit) -> Placed:
        child, at = self.place(node.child)
        if node.whole and not at.single:
            if node.count is not None:
                child = Limit(node.count + node.offset, 0, False, child)
            child, at = self._gathered((child, at))
        return replace(node, child=child), at

    def _top(self, node: TopN) -> Placed:
        child, at = self.place(node.child)
        if not at.single:
            share = TopN(node.count + node.offset, 0, node.keys, child.output, child)
            child, at = self._gathered((share, at))
        return replace(node, child=child), at

    def _union(self, node: Union) -> Placed:
        placed = [self.place(child) for child in node.inputs]
        tasks = max((at.tasks for _, at in placed), default=1)
        inputs = []
        for child, at in placed:
            if at.single and tasks > 1 and not _can_be_shared(child):
                # One task's rows among the rows of several: a stage of its own, which task 0 alone reads.
                child = Exchange(Partitioning.SINGLE, 1, (), (), child)
            inputs.append(child)
        return replace(node, inputs=tuple(inputs)), Distribution(tasks)

    # ---------------------------------------------------------------------------------------- joins

    def _join(self, node: Join) -> Placed:
        left, right = self.place(node.left), self.place(node.right)
        if left[1].single and right[1].single:
            return _joined(node, left, right, SINGLE)
        match self._broadcast_side(node):
            case BuildSide.RIGHT if left[1].single:
                return _joined(node, left, self._gathered(right), SINGLE)
            case BuildSide.LEFT if right[1].single:
                return _joined(node, self._gathered(left), right, SINGLE)
            case BuildSide.RIGHT:
                return _joined(node, left, self._everywhere(right, _looked_up(node)), left[1])
            case BuildSide.LEFT:
                return _joined(node, self._everywhere(left), right, right[1])
        if not node.left_keys or node.null_aware or _key_types_differ(node):
            return _joined(node, self._gathered(left), self._gathered(right), SINGLE)
        left, right = map(self._seen_apart, self._together(node, left, right))
        return _joined(node, left, right, _distribution_of_join(node, left[1], right[1]))

    def _broadcast_side(self, node: Join) -> BuildSide | None:
        """The side that every task may see whole: the one Spark chose, or any for a join without keys."""
        without_keys = not node.left_keys or node.null_aware
        divisible = traits_of(node).divisible
        if (_is_broadcast(node.right) or without_keys) and 0 in divisible:
            return BuildSide.RIGHT
        if (_is_broadcast(node.left) or without_keys) and 1 in divisible:
            return BuildSide.LEFT
        return None

    def _together(self, node: Join, left: Placed, right: Placed) -> tuple[Placed, Placed]:
        """Both sides laid out so that rows with equal keys are in the same task; moves as few sides as it can."""
        left_keys = tuple(plain(key) for key in node.left_keys)
        right_keys = tuple(plain(key) for key in node.right_keys)
        pairs = set(zip(left_keys, right_keys, strict=True))
        for mine in left[1].hashed_by:
            for theirs in right[1].hashed_by:
                if len(mine) == len(theirs) and pairs.issuperset(zip(mine, theirs, strict=True)):
                    return left, right
        for mine in left[1].hashed_by:
            if set(mine) <= set(left_keys):
                return left, self._hashed(right, [node.right_keys[left_keys.index(key)] for key in mine])
        for theirs in right[1].hashed_by:
            if set(theirs) <= set(right_keys):
                return self._hashed(left, [node.left_keys[right_keys.index(key)] for key in theirs]), right
        return self._hashed(left, node.left_keys), self._hashed(right, node.right_keys)

    def _seen_apart(self, placed: Placed) -> Placed:
        """The side of a join in a stage of its own where it may prove so small that other sides need not be exchanged:
        groups of which a condition leaves some.
        """
        node, at = placed
        below = node
        while traits_of(below).row_by_row:
            (child,) = below.children
            if is_selective(below) and isinstance(child, Aggregate) and not takes_any_share(child):
                keys = min(at.hashed_by, key=len)
                return Exchange(Partitioning.HASH, self._workers, keys, (), node), at
            below = child
        return placed

    # ------------------------------------------------------------------------------------ exchanges

    def _clustered(self, placed: Placed, keys: Sequence[Expression]) -> Placed:
        """Rows that agree on `keys` in one task; all rows in one task when there are no keys."""
        if placed[1].single or (keys and placed[1].clusters(keys)):
            return placed
        return self._hashed(placed, [_value(key) for key in keys]) if keys else self._gathered(placed)

    def _hashed(self, placed: Placed, keys: Sequence[Expression]) -> Placed:
        if self._workers == 1:
            return placed
        exchange = Exchange(Partitioning.HASH, self._workers, tuple(keys), (), _not_moved(placed[0]))
        at: Keys = tuple(plain(key) for key in keys)
        return exchange, Distribution(self._workers, frozenset({at}))

    def _gathered(self, placed: Placed) -> Placed:
        if placed[1].single:
            return placed
        return Exchange(Partitioning.SINGLE, 1, (), (), _not_moved(placed[0])), SINGLE

    def _everywhere(self, placed: Placed, looked_up: tuple[Attribute, ...] = ()) -> Placed:
        """All rows in every task: computed there from small files, or once and then read by all.

        Where only the values of `looked_up` are asked for, a task sends each once: every reader builds a table of them.
        """
        child = _not_moved(placed[0])
        if self._costs_less_than_a_stage(child):
            return transform(
                child, lambda n: replace(n, whole=True) if isinstance(n, FileScan) else n
            ), placed[1]
        if looked_up:
            child = Aggregate(looked_up, (), (), looked_up, child)
        return Exchange(Partitioning.BROADCAST, 1, (), (), child), placed[1]

    def _costs_less_than_a_stage(self, node: Node) -> bool:
        parts = list(walk(node))
        leaves = [part for part in parts if not part.children]
        if any(isinstance(part, Exchange) for part in parts) or not gives_same_rows(node):
            return False
        scans = [leaf for leaf in leaves if isinstance(leaf, FileScan)]
        cost = sum(cost_bytes(scan, self._limits) for scan in scans)
        return len(scans) == len(leaves) and within(cost, self._limits.replicated_scan_bytes)


def _not_moved(node: Node) -> Node:
    """What is moved again at once need not be moved before."""
    return node.child if isinstance(node, Exchange) else node


def _looked_up(join: Join) -> tuple[Attribute, ...]:
    """The columns of the right side that a join asks whether they occur, and nothing else of it."""
    kinds = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.EXISTENCE)
    if join.kind not in kinds or join.condition is not None or join.null_aware:
        return ()
    columns = tuple(dict.fromkeys(key for key in join.right_keys if isinstance(key, Attribute)))
    return columns if len(columns) == len(join.right_keys) else ()


def _joined(node: Join, left: Placed, right: Placed, at: Distribution) -> Placed:
    return replace(node, left=left[0], right=right[0]), at


def _distribution_of_join(node: Join, left: Distribution, right: Distribution) -> Distribution:
    match node.kind:
        case JoinKind.INNER:
            return Distribution(left.tasks, left.hashed_by | right.hashed_by)
        case JoinKind.RIGHT:
            return right
        case JoinKind.FULL:
            # Rows of either side carry NULL in the other side's keys.
            return left.scattered()
        case _:
            return left


def _is_broadcast(node: Node) -> bool:
    return isinstance(node, Exchange) and node.partitioning is Partitioning.BROADCAST


def _key_types_differ(node: Join) -> bool:
    """Equal values of two types may hash differently."""
    return any(left.type != right.type for left, right in zip(node.left_keys, node.right_keys, strict=True))


def takes_any_share(node: Aggregate) -> bool:
    """Whether the node only reduces rows to state, which a later aggregate merges."""
    return traits_of(node).together is None


def _first_halves(plan: Node) -> frozenset[int]:
    """By identity, the aggregates that only thin out what another groups in the same way after the exchange.

    An aggregate without calls has no mode that would tell which half of a DISTINCT it is.
    """
    halves = set()
    for upper in walk(plan):
        if isinstance(upper, Aggregate) and not upper.calls:
            lower = upper.child.child if isinstance(upper.child, Exchange) else upper.child
            same = {plain(key) for key in upper.grouping} == {plain(a) for a in lower.output}
            if isinstance(lower, Aggregate) and not lower.calls and same:
                halves.add(id(lower))
    return frozenset(halves)


def _can_be_shared(node: Node) -> bool:
    """Whether several tasks could run it over shares of its splits and together give its rows once."""
    return isinstance(below_row_by_row(node), FileScan | SourceScan)


def _value(expression: Expression) -> Expression:
    return expression.child if isinstance(expression, Alias) else expression
