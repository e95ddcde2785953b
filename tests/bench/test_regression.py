# SPDX-License-Identifier: Apache-2.0
"""Two saved benchmarks: a slower query is named, noise and a slower machine are not taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from volley.bench.regression import compare, read_results
from volley.cli.bench import bench
from volley.errors import ConfigError


def results(seconds: dict[tuple[str, str], list[float]], calls: int = 33) -> dict[str, Any]:
    return {
        "scale": 1.0,
        "results": [
            {
                "query": query,
                "engine": engine,
                "all_seconds": runs,
                "cost": {"jvm_calls": calls, "x_bytes": calls},
            }
            for (query, engine), runs in seconds.items()
        ],
    }


OLD = results({("q01", "volley"): [1.0, 1.02, 0.99], ("q02", "volley"): [0.5, 0.7, 0.6]})


def test_a_slower_query_is_told_from_a_noisy_one() -> None:
    new = results({("q01", "volley"): [1.2, 1.21, 1.19], ("q02", "volley"): [0.65, 0.55, 0.75]})
    found = compare(OLD, new)
    assert (found.of("slower"), found.of("same")) == (["q01"], ["q02"])
    assert found.changes[0].band.ratio == pytest.approx(1.2)
    assert found.changes[0].band.low > 1.15


def test_a_faster_query_is_found() -> None:
    new = results({("q01", "volley"): [0.8, 0.81, 0.8], ("q02", "volley"): [0.6, 0.5, 0.7]})
    assert compare(OLD, new).of("faster") == ["q01"]


def test_a_slower_machine_is_not_a_slower_query() -> None:
    def with_peer(factor: float) -> dict[str, Any]:
        runs = {"volley": [1.0, 1.01, 1.0], "datafusion": [2.0, 2.01, 1.99]}
        return results({("q01", name): [factor * run for run in took] for name, took in runs.items()})

    found = compare(with_peer(1.0), with_peer(1.5))
    assert (found.reference, found.verdict) == ("datafusion", "same")
    assert found.drift == pytest.approx(1.5)
    assert compare(with_peer(1.0), with_peer(1.5), reference="").verdict == "slower"


def test_one_run_says_nothing() -> None:
    once = results({("q01", "volley"): [1.0]})
    assert compare(once, results({("q01", "volley"): [5.0]})).verdict == "unknown"


def test_counts_that_changed_are_listed_and_bytes_are_not() -> None:
    (change,) = compare(
        results({("q01", "volley"): [1.0, 1.0]}), results({("q01", "volley"): [1.0, 1.0]}, calls=40)
    ).changes
    assert change.counts == {"jvm_calls": (33, 40)}


def test_other_scales_and_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="scale"):
        compare(OLD, OLD | {"scale": 10.0})
    with pytest.raises(ConfigError, match="no query of polars"):
        compare(OLD, OLD, engine="polars")


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"results": [{"case": "x"}]}')
    with pytest.raises(ConfigError, match="no results"):
        read_results(tmp_path / "other.json")


def test_the_command_fails_for_a_slower_query(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(OLD))
    new.write_text(json.dumps(results({("q01", "volley"): [2.0, 2.0, 2.0], ("q02", "volley"): [0.5, 0.6]})))
    ran = CliRunner().invoke(bench, ["compare", str(old), str(new)])
    assert ran.exit_code == 1
    assert "slower" in ran.output
    assert CliRunner().invoke(bench, ["compare", str(old), str(old)]).exit_code == 0
