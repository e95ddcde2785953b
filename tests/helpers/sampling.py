# SPDX-License-Identifier: Apache-2.0
"""A part of many similar cases for every run, and all of them in the slow suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, Phase, settings


def every(step: int, cases: Iterable[Any], name: Callable[[Any], str] | None = None) -> list[ParameterSet]:
    """Parameters of which only each `step`-th runs by default. A tuple is one value for each parameter."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name(case) if name else None,
            marks=() if number % step == 0 else pytest.mark.slow,
        )
        for number, case in enumerate(cases)
    ]


def draw_queries(examples: int) -> settings:
    """Settings for so many random queries, beside those of the profile. To shrink one takes many runs of Spark."""
    return settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def draw_files(examples: int, *, shrink: bool = False) -> settings:
    """Settings for so many random files after the explicit ones. `shrink`: a case that fails is made small."""
    return settings(
        max_examples=examples,
        phases=list(Phase) if shrink else [Phase.explicit, Phase.generate],
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )
