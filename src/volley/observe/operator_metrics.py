# SPDX-License-Identifier: Apache-2.0
"""Rows and times of the operators of Spark's plan, where it is certain which native operators they are.

Native plans have operators of their own: some of Spark's are fused into others there, and some have no counterpart. So
an operator has figures if the native stages have as many of its kind as Spark's plan, and there is only one, or the
plan is a chain, in which the first of Spark's is the first native one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volley.observe.stage_data import Stage

_KINDS = {
    "FileScan": ("DataSourceExec",),
    "Filter": ("FilterExec",),
    "Aggregate": ("AggregateExec",),
    "Join": ("HashJoinExec", "SortMergeJoinExec", "NestedLoopJoinExec", "CrossJoinExec"),
}
_NANOSECONDS = 1e9


def with_figures(plan: Sequence[dict[str, Any]], stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """The plan, parents first, with the `figures` of each operator; None if they are not known."""
    # The result's stage comes last, and a stage lists its operators from the top.
    natively = [
        (operator, stage)
        for stage in sorted(stages, key=lambda stage: (stage.part, stage.stage), reverse=True)
        for operator in stage.operators
    ]
    depths = [node["depth"] for node in plan]
    is_chain = depths == list(range(len(plan))) and len({stage.part for stage in stages}) == 1
    found: dict[int, dict[str, Any]] = {}
    for kind, names in _KINDS.items():
        ours = [place for place, node in enumerate(plan) if node["name"] == kind]
        theirs = [item for item in natively if item[0]["name"] in names]
        if len(ours) == len(theirs) and (len(ours) == 1 or is_chain) and all(plan[n]["native"] for n in ours):
            for place, (operator, stage) in zip(ours, theirs, strict=True):
                found[place] = {
                    "stage": stage.name,
                    "rows": operator.get("output_rows", 0),
                    "seconds": operator.get("elapsed_compute", 0) / _NANOSECONDS,
                    "skew": round(stage.skew, 2),
                }
    return [node | {"figures": found.get(place)} for place, node in enumerate(plan)]
