# SPDX-License-Identifier: Apache-2.0
"""The table of costs notices a query that costs more, and one that costs much less. The comparison itself is in
tests/api/test_tpch.py and tests/cluster/test_cluster_queries.py, with the runs that they make anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.costs import Costs, allowed, differences
from volley.bench.cost import Cost
from volley.bench.queries import QUERIES

COST = Cost(stages=7, tasks=15, exchanged_bytes=400_000, jvm_calls=33, messages=46, message_bytes=100_000)
KNOWN = {name: (value, value) for name, value in COST.to_dict().items()}


def test_the_same_cost_is_no_difference() -> None:
    assert differences(KNOWN, COST) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jvm_calls": 34}, "jvm_calls is 34, not 33"),
        ({"tasks": 20}, "tasks is 20, not 13-17"),
        ({"exchanged_bytes": 500_000}, "exchanged_bytes is 500,000"),
        ({"exchanged_bytes": 200_000}, "exchanged_bytes is 200,000"),
    ],
)
def test_another_cost_is_named(change: dict[str, int], words: str) -> None:
    (problem,) = differences(KNOWN, replace(COST, **change))
    assert problem.startswith(words)


def test_small_counts_are_exact() -> None:
    assert allowed("tasks", (1, 1)) == (1, 1)
    assert allowed("stages", (2, 2)) == (2, 2)


def test_a_cost_beyond_the_table_fails() -> None:
    costs = Costs(record=False)
    cost = Cost(stages=1, tasks=2, exchanged_bytes=0, jvm_calls=1000, messages=0, message_bytes=0)
    with pytest.raises(AssertionError, match=r"q01, one worker: .*tasks is 2, not 1.*make costs"):
        costs.check("one worker", QUERIES[0], cost, lambda: cost)
