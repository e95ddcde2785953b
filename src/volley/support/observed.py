# SPDX-License-Identifier: Apache-2.0
"""Who computes the metrics of `df.observe`: the driver, by native plans beside the query, or Spark with the query."""

from __future__ import annotations

from collections.abc import Callable

from volley.plan.nodes import Node, Observe, walk
from volley.plan.observed_metrics import LeftToSpark, ObservedMetrics, leave_metrics, take_metrics
from volley.plan.subqueries import with_subqueries
from volley.support.check import check

DEPENDS_ON_SPARK = "the metrics depend on how many rows Spark reads for this action"


def settle_metrics(
    plan: Node, counts_once: Callable[[], bool] | None, replaced: Callable[[Node, Node], None]
) -> tuple[Node, tuple[ObservedMetrics, ...]]:
    """The plan without observations, and what computes their metrics; or with those that only Spark can compute.

    `counts_once` is as in `take_metrics`, or None if not all rows of the plan are read, or not by the plan alone.
    `replaced` is told of every node that became another.
    """
    plan = with_subqueries(
        plan, lambda inner: leave_metrics(inner, replaced, "inside a subquery, which Spark may run or not")
    )
    if not any(isinstance(node, Observe) for node in walk(plan)):
        return plan, ()
    try:
        if counts_once is None:
            raise LeftToSpark(DEPENDS_ON_SPARK)
        query, observed = take_metrics(plan, counts_once=counts_once())
        for part in (query, *(each for metrics in observed for each in metrics.plans)):
            if reasons := check(part).reasons:
                raise LeftToSpark(f"not all of the query or its metrics is native: {reasons[0]}")
    except LeftToSpark as left:
        return leave_metrics(plan, replaced, str(left)), ()
    return query, observed
