# SPDX-License-Identifier: Apache-2.0
"""Cuts a plan into stages: each exchange ends one stage and becomes an input of another.

Sort                       stage 2   Sort(StageInput 1)
  Exchange single                       |
    Aggregate Final        stage 1   Aggregate Final(StageInput 0)
      Exchange hash                     |
        Aggregate Partial  stage 0   Aggregate Partial(FileScan)
          FileScan
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from volley.plan.carried_order import OrderCarrier
from volley.plan.nodes import (
    Exchange,
    Limit,
    MaterializedInput,
    Node,
    Partitioning,
    Sort,
    StageInput,
    walk,
    with_children,
)
from volley.plan.order import is_ordered, make_order_explicit, order_partitions, order_result, sort_ranges
from volley.plan.subqueries import plans_in, with_subqueries
from volley.stages.exchanges import place_exchanges
from volley.stages.filtered_groups import filter_groups
from volley.stages.fuse import (
    combine_aggregates,
    complete_after_exchange,
    drop_idle_distinct,
    drop_idle_sorts,
    rename_reused_halves,
)
from volley.stages.graph import Output, Stage, StageGraph
from volley.stages.implied_semi_joins import drop_implied_semi_joins
from volley.stages.join_order import join_selective_tables_first
from volley.stages.limits import PlannerLimits
from volley.stages.partition_pruning import keep_useful_prunings
from volley.stages.reuse import merge_equal_stages
from volley.stages.row_counts import RowCounts
from volley.stages.scans import scan_tasks, scans_of
from volley.support.operators import is_unsplittable


def make_stages(plan: Node, workers: int, limits: PlannerLimits) -> StageGraph:
    """The stages that run `plan` on `workers`. One worker: a single task, plus one for each subquery.

    Rows that are in several partitions of the stores are read by several tasks, also if one worker is left.
    """
    if workers == 1:
        workers = _stored_partitions(plan)

    def arrange(plan: Node) -> Node:
        # Several tasks do not read files in one defined order.
        carrier = OrderCarrier(limits.ordered_files if workers == 1 else 1, limits.ordered_bytes)
        plan = order_result(make_order_explicit(sort_ranges(order_partitions(plan)), carrier), carrier)
        plan = drop_idle_distinct(drop_idle_sorts(plan))
        plan = join_selective_tables_first(plan)
        plan = rename_reused_halves(plan, is_unsplittable)
        if workers > 1:
            plan = complete_after_exchange(plan, is_unsplittable)
        plan = combine_aggregates(place_exchanges(plan, workers, limits))
        # Between stages, equal ones are merged and rows are filtered by the sides that have finished.
        return plan if workers > 1 else filter_groups(drop_implied_semi_joins(plan))

    return merge_equal_stages(cut(plan, workers, limits, arrange))


def _stored_partitions(plan: Node) -> int:
    inputs = (node.partitions for node in walk(plan) if isinstance(node, MaterializedInput))
    return max([1, *inputs, *map(_stored_partitions, plans_in(plan))])


def partition_result(graph: StageGraph, readers: int) -> StageGraph:
    """The graph with its result left in the shuffle stores, in partitions that any of `readers` can take."""
    # Twice as many as readers, so that each gets about the same amount.
    return store_result(graph, max(1, -(-2 * readers // graph.result.tasks)))


def store_result(graph: StageGraph, partitions: int) -> StageGraph:
    """The graph with its result left in the shuffle stores, each task's distributed over `partitions`."""
    output = Output(Partitioning.ROUND_ROBIN, partitions)
    return replace(graph, stages=(*graph.stages[:-1], replace(graph.result, output=output)))


def note_single_task(graph: StageGraph) -> StageGraph:
    """The graph of a query that is not distributed, with the reason among its decisions."""
    return _note(graph, "the query reads little data, so one task does all of it")


def note_division(graph: StageGraph, tasks: int) -> StageGraph:
    """The graph of a query that is divided into small tasks, with the reason among its decisions."""
    return _note(graph, f"the query did not fit into memory, so it is divided into up to {tasks} tasks")


def _note(graph: StageGraph, decision: str) -> StageGraph:
    return replace(graph, stages=(*graph.stages[:-1], replace(graph.result, decisions=(decision,))))


def cut(
    plan: Node, workers: int, limits: PlannerLimits, arrange: Callable[[Node], Node] = lambda plan: plan
) -> StageGraph:
    """Cut `plan` and its subqueries at every exchange, after `arrange` has rewritten them."""
    cutter = _Cutter(workers, limits, arrange)
    root = cutter.last_stage(plan)
    stages = (*cutter.stages, cutter.stage(root, None, is_ordered(root)))
    return StageGraph(stages, frozenset(cutter.subqueries))


class _Cutter:
    def __init__(self, workers: int, limits: PlannerLimits, arrange: Callable[[Node], Node]) -> None:
        self.stages: list[Stage] = []
        self._workers = workers
        self._limits = limits
        self._arrange = arrange
        self.subqueries: set[int] = set()
        self._read_as: dict[Node, StageInput] = {}
        self._row_counts = RowCounts()

    def last_stage(self, plan: Node) -> Node:
        """Cut off all stages but the last, into `stages`, and return the plan of the last one."""
        plan = keep_useful_prunings(plan, self._limits)
        arranged = self._arrange(with_subqueries(plan, self._subquery))
        return self._cut_exchanges(self._row_counts.keep(arranged))

    def stage(self, plan: Node, output: Output | None, ordered: bool) -> Stage:
        return Stage(len(self.stages), plan, self._tasks(plan), output, ordered)

    def _subquery(self, plan: Node) -> StageInput:
        if plan not in self._read_as:
            root = self.last_stage(plan)
            stage = self.stage(root, Output(Partitioning.SINGLE), ordered=False)
            self.stages.append(stage)
            self.subqueries.add(stage.id)
            self._read_as[plan] = StageInput(stage.id, root.output)
        return self._read_as[plan]

    def _cut_exchanges(self, node: Node) -> Node:
        if isinstance(node, MaterializedInput):
            # A stage that has already run.
            output = Output(Partitioning.ROUND_ROBIN, node.partitions)
            self.stages.append(Stage(len(self.stages), node, node.tasks, output))
            return StageInput(self.stages[-1].id, node.output)
        if not isinstance(node, Exchange):
            return with_children(node, tuple(self._cut_exchanges(child) for child in node.children))
        child = self._cut_exchanges(node.child)
        stage = self.stage(child, _output(node, child), isinstance(child, Sort))
        self.stages.append(stage)
        return StageInput(stage.id, child.output, child.keys if isinstance(child, Sort) else ())

    def _tasks(self, plan: Node) -> int:
        """The task count of the leaf with the most; leaves that every task reads whole do not count."""
        scans = (scan_tasks(scan, self._workers, self._limits) for scan in scans_of(plan))
        tasks = max(scans, default=1)
        for node in walk(plan):
            if isinstance(node, StageInput):
                output = self.stages[node.stage].output
                assert output is not None
                tasks = max(tasks, output.partitions)
        return tasks


def _output(exchange: Exchange, child: Node) -> Output:
    enough = (
        child.count if isinstance(child, Limit) and exchange.partitioning is Partitioning.SINGLE else None
    )
    return Output(exchange.partitioning, exchange.partitions, exchange.keys, enough)
