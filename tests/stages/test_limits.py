# SPDX-License-Identifier: Apache-2.0
"""The planner's thresholds are one value that comes from the configuration, and nothing else."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from volley import stages
from volley.config import Config
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits, within
from volley.testing.limits import (
    DISTRIBUTED,
    DISTRIBUTED_SETTINGS,
    UNMERGED,
    UNMERGED_SETTINGS,
)

OPTIONS = {
    "singleTaskSize": "single_task_bytes",
    "planner.scanTaskSize": "scan_task_bytes",
    "planner.shuffleTaskSize": "shuffle_task_bytes",
    "planner.replicatedScanSize": "replicated_scan_bytes",
    "planner.continuedStageSize": "continued_stage_bytes",
    "planner.broadcastSize": "broadcast_bytes",
    "planner.runtimeFilterSize": "runtime_filter_bytes",
}

# Not thresholds: a size that stands for "nobody knows", and what a literal may hold at most.
NOT_LIMITS = {"_UNKNOWN_BYTES", "MAX_LITERALS"}


def test_the_options_default_to_the_defaults_of_the_limits() -> None:
    assert PlannerLimits.of(Config.read({})) == DEFAULT_LIMITS


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_sets_its_limit_alone(option: str) -> None:
    limits = PlannerLimits.of(Config.read({f"spark.volley.{option}": "7k"}))
    changed = {
        field.name: getattr(limits, field.name)
        for field in fields(limits)
        if getattr(limits, field.name) != getattr(DEFAULT_LIMITS, field.name)
    }
    assert changed == {OPTIONS[option]: 7 * 1024}


def test_a_limit_of_zero_turns_a_decision_off() -> None:
    assert within(10, 10)
    assert not within(11, 10)
    assert not within(0, 0)


def test_sessions_of_tests_are_told_what_plans_of_tests_are() -> None:
    assert PlannerLimits.of(Config.read(DISTRIBUTED_SETTINGS)) == DISTRIBUTED
    assert PlannerLimits.of(Config.read(UNMERGED_SETTINGS)) == UNMERGED


def test_no_pass_has_a_threshold_of_its_own() -> None:
    found = set()
    for path in Path(stages.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and path.name != "limits.py":
                is_number = isinstance(node.value, ast.BinOp) or (
                    isinstance(node.value, ast.Constant) and isinstance(node.value.value, int | float)
                )
                found |= {target.id for target in node.targets if isinstance(target, ast.Name) and is_number}
    assert found == NOT_LIMITS
