# SPDX-License-Identifier: Apache-2.0
"""Whether running a stage again gives the same rows in the same partitions.

When exchanged data is lost, only the tasks that made it run again. That is enough if they give what they gave before.
Otherwise readers of the old output and of the new one would see two versions of one result, so the readers must be
rolled back too. The answer is read off the plan, and is No wherever order or chance could show.
"""

from __future__ import annotations

from volley.plan.expressions import AggregateCall, walk
from volley.plan.nodes import (
    Aggregate,
    Limit,
    Node,
    Partitioning,
    TopN,
    Window,
    expressions,
)
from volley.plan.nodes import walk as walk_plan
from volley.plan.types import FRACTIONAL
from volley.stages.graph import Stage

_FROM_ANY_ROW = frozenset({"First", "Last"})
_SUMMED = frozenset({"Sum", "Average", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"})


def is_repeatable(stage: Stage) -> bool:
    if stage.output is not None and stage.output.partitioning is Partitioning.ROUND_ROBIN:
        return False  # dealt in the order in which batches happen to arrive
    if stage.output is not None and stage.output.enough_rows is not None:
        return False  # which tasks gave the rows is a matter of which were first
    return gives_same_rows(stage.plan)


def gives_same_rows(plan: Node) -> bool:
    """Whether two runs of the plan over the same rows give the same rows."""
    return not any(_depends_on_order(node) for node in walk_plan(plan))


def _depends_on_order(node: Node) -> bool:
    match node:
        case Limit() | TopN() | Window():
            return True  # which of several rows, or of several equal ones
        case Aggregate():
            calls = (part for held in expressions(node) for part in walk(held))
            return any(isinstance(call, AggregateCall) and _order_shows(call) for call in calls)
        case _:
            return False


def _order_shows(call: AggregateCall) -> bool:
    if call.function.function in _FROM_ANY_ROW:
        return True
    # Adding doubles in another order changes their last bits.
    is_float = call.type in FRACTIONAL or any(part.type in FRACTIONAL for part in call.function.arguments)
    return call.function.function in _SUMMED and is_float
