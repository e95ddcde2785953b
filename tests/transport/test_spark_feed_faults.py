# SPDX-License-Identifier: Apache-2.0
"""kill -9 of an executor of a real standalone cluster while splits flow to it: every split is in the result, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parents[1].joinpath("helpers", "standalone_feed_program.py")
SEEDS = ("1", "2", "3", "4")


def test_executors_are_killed_while_splits_flow(tmp_path: Path) -> None:
    scratch = tmp_path / "calls"
    scratch.mkdir()
    with StandaloneCluster(tmp_path) as cluster:
        answers = json.loads(cluster.run(PROGRAM, str(scratch), *SEEDS).splitlines()[-1])
    limit, held, *struck = answers
    assert (limit["engine"], limit["right"]) == ("native", True)
    assert held["read again"] > 0, "the blow hit nothing"
    assert len(struck) == len(SEEDS)
    for answer in (held, *struck):
        assert (answer["engine"], answer["right"]) == ("native", True), answer
        assert answer["splits"] == [[120, 120]], answer
