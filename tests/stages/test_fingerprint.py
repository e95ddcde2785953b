# SPDX-License-Identifier: Apache-2.0
"""Keys of stages: what they cover, and which stages have none."""

from __future__ import annotations

from dataclasses import replace

from volley.plan.expressions import Alias, Attribute, Call
from volley.plan.nodes import OneRow, Partitioning, Project, Range
from volley.plan.types import LONG, STRING
from volley.stages.fingerprint import stage_key
from volley.stages.graph import Output, Stage
from volley.stages.layout import Layout

ID = Attribute(1, "id", LONG)
CAST = Call("Cast", (Attribute(2, "s", STRING),), LONG)


def key_of(stage: Stage, *surroundings: str) -> str | None:
    return stage_key(stage, Layout(stage.tasks), {}, surroundings)


def stage_over(cast: Call) -> Stage:
    text = Project((Alias(2, "s", Call("Cast", (ID,), STRING)),), Range(0, 10, 1, (ID,)))
    return Stage(0, Project((Alias(3, "n", cast),), text), 1, Output(Partitioning.SINGLE))


def test_the_same_stage_has_the_same_key_and_others_have_another() -> None:
    stage = stage_over(CAST)
    assert key_of(stage) is not None
    assert key_of(stage) == key_of(stage_over(CAST))
    others = [replace(stage, tasks=2), replace(stage, plan=OneRow()), stage_over(replace(CAST, type=STRING))]
    keys = {key_of(stage), key_of(stage, "volley 2"), *map(key_of, others)}
    assert len(keys) == 5


def test_a_cast_with_a_program_of_this_process_has_none() -> None:
    with_program = replace(CAST, options=(("program", 7),))
    assert key_of(stage_over(with_program)) is None
