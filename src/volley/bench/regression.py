# SPDX-License-Identifier: Apache-2.0
"""Compares two saved benchmarks, an old and a new one, and tells changes from noise.

    ratio   new seconds / old seconds of an engine, by the medians of its runs
    band    the ratios that the same runs may just as well have given: runs are drawn again and again, with
            replacement, and 95 % of the ratios are inside
    drift   the same ratio for an engine that did not change, which took turns with the compared one. The machine was
            that much slower; every ratio is divided by it.

A query is slower, or faster, only if its whole band is on one side of 1, by more than a threshold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, Literal

from volley.errors import ConfigError

Verdict = Literal["slower", "faster", "same", "unknown"]

# Engines of other projects, best first: they do not change with Volley.
REFERENCES = ("datafusion", "duckdb", "sail", "polars", "daft", "spark")
_DRAWS = 1000
_OUTSIDE = 0.05


@dataclass(frozen=True)
class Band:
    """A ratio, and the range that noise alone explains."""

    ratio: float
    low: float
    high: float

    def verdict(self, threshold: float) -> Verdict:
        if self.low > 1 + threshold:
            return "slower"
        return "faster" if self.high < 1 - threshold else "same"

    def __truediv__(self, drift: float) -> Band:
        return Band(self.ratio / drift, self.low / drift, self.high / drift)


@dataclass(frozen=True)
class QueryChange:
    """One query in both files. `counts` are costs that changed, as (old, new)."""

    query: str
    old_seconds: float
    new_seconds: float
    band: Band
    verdict: Verdict
    counts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Comparison:
    engine: str
    reference: str | None
    drift: float
    """How much slower the machine was for `reference`; 1.0 without one."""
    total: Band
    verdict: Verdict
    changes: tuple[QueryChange, ...]
    missing: tuple[str, ...]
    """Queries that only one of the files has."""

    def of(self, verdict: Verdict) -> list[str]:
        return [change.query for change in self.changes if change.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_results(file: Path) -> dict[str, Any]:
    """What `--json` of a suite wrote."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if all({"query", "engine", "all_seconds"} <= set(result) for result in found["results"]):
            return dict(found)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{file} holds no results of a suite.", hint="Write one: volley bench tpch --json FILE")


def compare(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    engine: str = "volley",
    reference: str | None = None,
    threshold: float = 0.02,
) -> Comparison:
    """Compare `engine` in two results. `reference` is an engine in both; None takes one, "" none.

    Changes smaller than the share `threshold` count as noise.
    """
    for what in ("suite", "scale"):
        if old.get(what) != new.get(what):
            raise ConfigError(f"one file has {what} {old.get(what)}, the other {new.get(what)}.")
    before, after = _runs(old, engine), _runs(new, engine)
    common = [query for query in before if query in after]
    if not common:
        raise ConfigError(f"the files have no query of {engine} in common.")
    if reference is None:
        reference = next((name for name in REFERENCES if name != engine and _shared(old, new, name)), None)
    drift = _drift(old, new, reference, common) if reference else 1.0
    draw = random.Random(0)
    bands = {query: _band([before[query]], [after[query]], draw) / drift for query in common}
    total = _band([before[query] for query in common], [after[query] for query in common], draw) / drift
    counts = {query: _changed_counts(old, new, engine, query) for query in common}
    return Comparison(
        engine,
        reference or None,
        drift,
        total,
        _verdict(total, threshold, [*before.values(), *after.values()]),
        tuple(
            QueryChange(
                query,
                median(before[query]),
                median(after[query]),
                bands[query],
                _verdict(bands[query], threshold, [before[query], after[query]]),
                counts[query],
            )
            for query in common
        ),
        tuple(sorted(before.keys() ^ after.keys())),
    )


def _verdict(band: Band, threshold: float, runs: Sequence[Sequence[float]]) -> Verdict:
    # One run says nothing about noise.
    return band.verdict(threshold) if all(len(seconds) > 1 for seconds in runs) else "unknown"


def _runs(results: Mapping[str, Any], engine: str) -> dict[str, list[float]]:
    found = [result for result in results["results"] if result["engine"] == engine]
    return {result["query"]: result["all_seconds"] for result in found if result["all_seconds"]}


def _shared(old: Mapping[str, Any], new: Mapping[str, Any], engine: str) -> bool:
    return bool(_runs(old, engine).keys() & _runs(new, engine).keys())


def _drift(old: Mapping[str, Any], new: Mapping[str, Any], engine: str, queries: Sequence[str]) -> float:
    before, after = _runs(old, engine), _runs(new, engine)
    ratios = [
        median(after[query]) / median(before[query])
        for query in queries
        if query in before and query in after
    ]
    if not ratios:
        raise ConfigError(f"{engine} did not run in both files.")
    return exp(sum(map(log, ratios)) / len(ratios))


def _band(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], draw: random.Random) -> Band:
    """The ratio of the sums of medians."""
    ratios = sorted(
        sum(median(_draw(runs, draw)) for runs in new) / sum(median(_draw(runs, draw)) for runs in old)
        for _ in range(_DRAWS)
    )
    cut = int(_DRAWS * _OUTSIDE / 2)
    ratio = sum(median(runs) for runs in new) / sum(median(runs) for runs in old)
    return Band(ratio, ratios[cut], ratios[-1 - cut])


def _draw(runs: Sequence[float], draw: random.Random) -> list[float]:
    return draw.choices(runs, k=len(runs))


def _changed_counts(
    old: Mapping[str, Any], new: Mapping[str, Any], engine: str, query: str
) -> dict[str, tuple[int, int]]:
    before, after = (_cost(results, engine, query) for results in (old, new))
    return {
        name: (before[name], after[name])
        for name in before
        if name in after and before[name] != after[name] and not name.endswith("_bytes")
    }


def _cost(results: Mapping[str, Any], engine: str, query: str) -> dict[str, int]:
    for result in results["results"]:
        if (result["engine"], result["query"]) == (engine, query):
            return dict(result.get("cost") or {})
    return {}
