"""From a plan to stages: each exchange ends one stage and becomes an input of another.

Sort                       stage 2   Sort(StageInput 1)
  Exchange single                       |
    Aggregate Final        stage 1   Aggregate Final(StageInput 0)
      Exchange hash                     |
        Aggregate Partial  stage 0   Aggregate Partial(FileScan)
          FileScan
"""

from __future__ import annotations

from dataclasses import replace

from volley.plan.expressions import Alias, Literal
from volley.plan.nodes import (
    Exchange,
    HeldRows,
    Limit,
    Node,
    Partitioning,
    Project,
    Sort,
    StageInput,
    walk,
    with_children,
)
from volley.plan.types import BOOLEAN
from volley.stages.exchanges import place_exchanges
from volley.stages.fuse import (
    combine_aggregates,
    complete_after_exchange,
    drop_idle_distinct,
    drop_idle_sorts,
)
from volley.stages.graph import Output, Stage, StageGraph, is_ordered
from volley.stages.reuse import merge_equal_stages
from volley.stages.scans import scan_tasks, scans_of
from volley.support.operators import UNSPLITTABLE

# Ids of columns that no plan of Spark's has: Catalyst counts its own up from zero.
_OWN_IDS = 2**62


def make_stages(plan: Node, workers: int) -> StageGraph:
    """The stages that run `plan` on `workers`; with one worker a single stage of a single task."""
    plan = drop_idle_distinct(drop_idle_sorts(plan))
    if workers > 1:
        plan = complete_after_exchange(plan, UNSPLITTABLE)
    plan = combine_aggregates(place_exchanges(plan, workers))
    return merge_equal_stages(cut(plan, workers))


def kept(graph: StageGraph, readers: int) -> StageGraph:
    """The graph with the rows of its last stage in blocks for `readers`, who take any of them, instead of a result."""
    last = graph.result
    # Twice as many as readers, so that these can be given about the same each.
    partitions = max(1, -(-2 * readers // last.tasks))
    output = Output(Partitioning.ROUND_ROBIN, partitions)
    return StageGraph((*graph.stages[:-1], replace(last, output=output)))


def cut(plan: Node, workers: int) -> StageGraph:
    """Every exchange in `plan` becomes the border of a stage."""
    stages: list[Stage] = []

    def without_exchanges(node: Node) -> Node:
        if isinstance(node, HeldRows):
            # A stage that has run, however what reads it is exchanged in turn.
            output = Output(Partitioning.ROUND_ROBIN, node.partitions)
            stages.append(Stage(len(stages), node, node.tasks, output))
            return StageInput(stages[-1].id, node.output)
        if not isinstance(node, Exchange):
            return with_children(node, tuple(without_exchanges(child) for child in node.children))
        child = without_exchanges(node.child)
        shown = child if child.output else _with_a_column(child)
        stage = Stage(
            len(stages), shown, _tasks(shown, stages, workers), _output(node, child), isinstance(child, Sort)
        )
        stages.append(stage)
        read = StageInput(stage.id, shown.output, child.keys if isinstance(child, Sort) else ())
        return read if child.output else Project((), read)

    root = without_exchanges(plan)
    stages.append(Stage(len(stages), root, _tasks(root, stages, workers), None, is_ordered(root)))
    return StageGraph(tuple(stages))


def _output(exchange: Exchange, child: Node) -> Output:
    enough = (
        child.count if isinstance(child, Limit) and exchange.partitioning is Partitioning.SINGLE else None
    )
    return Output(exchange.partitioning, exchange.partitions, exchange.keys, enough)


def _with_a_column(child: Node) -> Node:
    """Batches without columns lose their row count on the way; one constant column keeps it."""
    return Project((Alias(_OWN_IDS, "row", Literal(True, BOOLEAN)),), child)


def _tasks(plan: Node, stages: list[Stage], workers: int) -> int:
    """As many tasks as the leaf that is spread furthest; what every task reads whole does not count."""
    tasks = max((scan_tasks(scan, workers) for scan in scans_of(plan)), default=1)
    for node in walk(plan):
        if isinstance(node, StageInput):
            output = stages[node.stage].output
            assert output is not None
            tasks = max(tasks, output.partitions)
    return tasks
