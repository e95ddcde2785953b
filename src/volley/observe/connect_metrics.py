# SPDX-License-Identifier: Apache-2.0
"""The report of a query as the metrics that Spark's Connect server sends after the rows."""

from __future__ import annotations

from typing import Any

from volley.observe.report import QueryReport, StageReport


def metrics_message(report: QueryReport) -> dict[str, Any]:
    """The content of an `ExecutePlanResponse.Metrics`: an object for the query, and below it one for each stage."""
    query = {
        "numOutputRows": ("number of output rows", report.rows, "sum"),
        "planningTime": ("planning time", int(report.planning_seconds * 1000), "timing"),
        "executionTime": ("execution time", int(report.execution_seconds * 1000), "timing"),
        "sparkTasks": ("tasks run by Spark", report.spark_tasks or 0, "sum"),
    }
    # In Spark's messages, too, the root is its own parent.
    objects = [_metric_object(f"Volley {report.engine}", 0, 0, query)]
    for place, stage in enumerate(report.stages, 1):
        objects.append(_metric_object(f"VolleyStage {stage.stage}", place, 0, _stage_metrics(stage)))
    return {"metrics": objects}


def _stage_metrics(stage: StageReport) -> dict[str, tuple[str, int, str]]:
    return {
        "numOutputRows": ("number of output rows", stage.rows, "sum"),
        "outputBytes": ("size of output", stage.bytes, "size"),
        "tasks": ("tasks", stage.tasks, "sum"),
        "duration": ("duration", int(stage.seconds * 1000), "timing"),
        "spilledBytes": ("spill size", stage.spilled_bytes, "size"),
    }


def _metric_object(
    name: str, plan_id: int, parent: int, metrics: dict[str, tuple[str, int, str]]
) -> dict[str, Any]:
    values = {
        key: {"name": title, "value": value, "metric_type": kind}
        for key, (title, value, kind) in metrics.items()
    }
    return {"name": name, "plan_id": plan_id, "parent": parent, "execution_metrics": values}
