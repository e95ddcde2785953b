# SPDX-License-Identifier: Apache-2.0
"""Planner limits for tests about distribution: their tables are so small that one task would do everything."""

from __future__ import annotations

from dataclasses import replace

from volley.stages.limits import PlannerLimits

DISTRIBUTED = PlannerLimits(
    single_task_bytes=0, scan_task_bytes=1, replicated_scan_bytes=0, continued_stage_bytes=0
)
"""However little a scan reads, all workers share it, and every stage runs on its own."""

UNMERGED = replace(DISTRIBUTED, shuffle_task_bytes=1)
"""The same, and shuffle partitions stay apart: a stage has as many tasks as were planned."""

DISTRIBUTED_SETTINGS = {
    "spark.volley.singleTaskSize": "0",
    "spark.volley.planner.scanTaskSize": "1",
    "spark.volley.planner.replicatedScanSize": "0",
    "spark.volley.planner.continuedStageSize": "0",
}
"""`DISTRIBUTED`, as a session is told."""

UNMERGED_SETTINGS = {**DISTRIBUTED_SETTINGS, "spark.volley.planner.shuffleTaskSize": "1"}
"""`UNMERGED`, as a session is told."""
