# SPDX-License-Identifier: Apache-2.0
"""Planner limits for tests of distribution, whose tables are so small that one task would do everything."""

from __future__ import annotations

from dataclasses import replace

from volley.stages.limits import PlannerLimits

DISTRIBUTED = PlannerLimits(
    single_task_bytes=0, scan_task_bytes=1, replicated_scan_bytes=0, continued_stage_bytes=0
)
"""All workers share every scan, however small, and every stage runs on its own."""

UNMERGED = replace(DISTRIBUTED, shuffle_task_bytes=1)
"""The same, without merging shuffle partitions: a stage has as many tasks as planned."""

DISTRIBUTED_SETTINGS = {
    "spark.volley.singleTaskSize": "0",
    "spark.volley.planner.scanTaskSize": "1",
    "spark.volley.planner.replicatedScanSize": "0",
    "spark.volley.planner.continuedStageSize": "0",
}
"""`DISTRIBUTED` as session options."""

UNMERGED_SETTINGS = {**DISTRIBUTED_SETTINGS, "spark.volley.planner.shuffleTaskSize": "1"}
"""`UNMERGED` as session options."""
