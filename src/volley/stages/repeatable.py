# SPDX-License-Identifier: Apache-2.0
"""Whether running a stage again gives the same rows in the same partitions.

When exchanged data is lost, only the tasks that produced it run again. That is enough if they produce the same output.
Otherwise readers of the old and of the new output would see two versions of one result, so the readers must be rolled
back too. The answer is derived from the plan, and is No wherever order or chance could affect the rows.
"""

from __future__ import annotations

from volley.identity_cache import once_per_object
from volley.plan.nodes import Node, Partitioning, walk
from volley.plan.traits import traits_of
from volley.stages.graph import Stage


def is_repeatable(stage: Stage) -> bool:
    if stage.output is not None and stage.output.partitioning is Partitioning.ROUND_ROBIN:
        return False  # partitions depend on the order in which batches arrive
    if stage.output is not None and stage.output.enough_rows is not None:
        return False  # the rows depend on which tasks finish first
    return gives_same_rows(stage.plan)


@once_per_object
def gives_same_rows(plan: Node) -> bool:
    """Whether two runs of the plan over the same input give the same rows."""
    return all(traits_of(node).repeatable for node in walk(plan))
