# SPDX-License-Identifier: Apache-2.0
"""Divides large ranges for Python functions: DataFusion makes a range in one stream, which would feed one process."""

from __future__ import annotations

from dataclasses import replace

from volley.plan.nodes import Filter, Node, Project, Range, Union

# Smaller ones stay whole, and with them the order in which people expect their rows.
_PART_ROWS = 100_000


def divide_range(plan: Node, streams: int) -> Node:
    """The plan with the range that it reads in as many consecutive parts, each of which is a stream."""
    match plan:
        case Project() | Filter():
            return replace(plan, child=divide_range(plan.child, streams))
        case Range():
            rows = -(-(plan.end - plan.start) // plan.step)
            if streams < 2 or rows < streams * _PART_ROWS:
                return plan
            starts = [plan.start + rows * part // streams * plan.step for part in range(streams)]
            ends = [*starts[1:], plan.end]
            parts = zip(starts, ends, strict=True)
            return Union(plan.output, tuple(replace(plan, start=start, end=end) for start, end in parts))
        case _:
            return plan
