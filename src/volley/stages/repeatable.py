# SPDX-License-Identifier: Apache-2.0
"""Whether running a stage again gives the same rows in the same partitions.

When exchanged data is lost, only the tasks that made it run again. That is enough if they give what they gave before.
Otherwise readers of the old output and of the new one would see two versions of one result, so the readers must be
rolled back too. The answer is read off the plan, and is No wherever order or chance could show.
"""

from __future__ import annotations

from volley.plan.nodes import Node, Partitioning, walk
from volley.plan.traits import traits_of
from volley.stages.graph import Stage


def is_repeatable(stage: Stage) -> bool:
    if stage.output is not None and stage.output.partitioning is Partitioning.ROUND_ROBIN:
        return False  # dealt in the order in which batches happen to arrive
    if stage.output is not None and stage.output.enough_rows is not None:
        return False  # which tasks gave the rows is a matter of which were first
    return gives_same_rows(stage.plan)


def gives_same_rows(plan: Node) -> bool:
    """Whether two runs of the plan over the same rows give the same rows."""
    return all(traits_of(node).repeatable for node in walk(plan))
