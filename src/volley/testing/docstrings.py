# SPDX-License-Identifier: Apache-2.0
"""PySpark's own docstring examples, run with and without Volley.

    python -m volley.testing.docstrings                       all modules, and a table of what runs on Spark
    python -m volley.testing.docstrings column --only isin    the docstrings of one module whose names contain a text

What an example prints must not depend on Volley. Whether it also equals the text of the docstring is not our concern.
"""

from __future__ import annotations

import argparse
import doctest
import importlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

import volley
from volley.python_versions import chdir
from volley.testing.fuzz.session import local_session
from volley.testing.session import conf, restore_conf

MODULES = (
    "functions.builtin",
    "dataframe",
    "column",
    "window",
    "group",
    "readwriter",
    "types",
    "session",
    "udf",
)
"""Below `pyspark.sql`."""

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Ids of plans and objects, times and temporary paths: what differs from one run to the next.
_VOLATILE = re.compile(r"#\d+L?|0x[0-9a-f]+|plan_id=\d+|\d+ms|/tmp/\S+|id: \d+")


@dataclass
class Verdict:
    """What one docstring did. `engine` is None if it runs no query; `different`: examples that Volley changes."""

    name: str
    engines: Counter[str] = field(default_factory=Counter)
    reasons: set[str] = field(default_factory=set)
    different: list[str] = field(default_factory=list)

    @property
    def engine(self) -> str | None:
        return next((engine for engine in ("spark", "mixed", "native") if self.engines[engine]), None)


def docstrings(modules: Iterable[str] = MODULES, only: str = "") -> Iterator[doctest.DocTest]:
    """The docstrings that have examples."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in modules:
        module = importlib.import_module(f"pyspark.sql.{name}")
        for test in finder.find(module, name, globs=dict(module.__dict__)):
            if test.examples and only in test.name:
                yield test


def compare(spark: SparkSession, test: doctest.DocTest) -> Verdict:
    """Run the examples on Spark, then on Volley."""
    verdict = Verdict(test.name)
    expected = _printed(spark, test, False, None)
    actual = _printed(spark, test, True, verdict)
    if expected != actual and expected == _printed(spark, test, False, None):
        for (source, plain), (_, ours) in zip(expected, actual, strict=True):
            if plain != ours:
                verdict.different.append(f"{source}\nSpark:\n{plain}\nVolley:\n{ours}")
    return verdict


def _printed(
    spark: SparkSession, test: doctest.DocTest, enabled: bool, verdict: Verdict | None
) -> list[tuple[str, str]]:
    """The examples that are not skipped, and what each of them printed."""
    runner = _Recorder(spark, verdict)
    globs = {**test.globs, "spark": spark, "sc": spark.sparkContext}
    copy = doctest.DocTest(test.examples, globs, test.name, test.filename, test.lineno, test.docstring)
    with tempfile.TemporaryDirectory() as directory, chdir(directory), restore_conf(spark):
        with conf(spark, {"spark.volley.enabled": str(enabled).lower()}):
            runner.run(copy, out=lambda text: None)
        spark.catalog.clearCache()
    return runner.printed


class _Recorder(doctest.DocTestRunner):
    """Keeps what each example printed, and who ran its query."""

    def __init__(self, spark: SparkSession, verdict: Verdict | None) -> None:
        super().__init__(optionflags=_FLAGS)
        self._spark = spark
        self._verdict = verdict
        self._last = volley.last_query(spark)
        self.printed: list[tuple[str, str]] = []

    def report_success(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        self._record(example, got)

    def report_failure(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        self._record(example, got)

    def report_unexpected_exception(
        self, out: Any, test: doctest.DocTest, example: doctest.Example, exc_info: Any
    ) -> None:
        self._record(example, f"{exc_info[0].__name__}: {str(exc_info[1]).splitlines()[:1]}")

    def _record(self, example: doctest.Example, got: str) -> None:
        self.printed.append((example.source.strip(), _VOLATILE.sub("*", got)))
        report: Any = volley.last_query(self._spark)
        if self._verdict is None or report is None or report is self._last:
            return
        self._last = report
        self._verdict.engines[report.engine] += 1
        if report.engine != "native":
            self._verdict.reasons |= {str(reason).partition(": ")[0] for reason in report.reasons}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.docstrings", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, help="modules of pyspark.sql")
    parser.add_argument("--only", default="", help="only docstrings whose names contain this text")
    parser.add_argument(
        "--verbose", action="store_true", help="name the docstrings that did not run natively"
    )
    options = parser.parse_args()
    spark = local_session("volley docstrings")
    verdicts: dict[str, list[Verdict]] = {}
    for test in docstrings(options.modules, options.only):
        verdict = compare(spark, test)
        verdicts.setdefault(test.name.rpartition(".")[0].split(".")[0], []).append(verdict)
        if options.verbose and verdict.engine not in ("native", None):
            print(f"{verdict.name}: {', '.join(sorted(verdict.reasons))}", flush=True)
        for text in verdict.different:
            print(f"{verdict.name} differs: {text}\n", flush=True)
    print(_table(verdicts))
    spark.stop()
    return 1 if any(verdict.different for group in verdicts.values() for verdict in group) else 0


def _table(verdicts: dict[str, list[Verdict]]) -> str:
    lines = []
    reasons: Counter[str] = Counter()
    for module, group in verdicts.items():
        engines = Counter(verdict.engine for verdict in group)
        ran = sum(engines[engine] for engine in ("native", "mixed", "spark"))
        share = f"{100 * engines['native'] / ran:.0f} %" if ran else "-"
        different = sum(bool(verdict.different) for verdict in group)
        lines.append(
            f"{module}: {ran} docstrings with queries, {engines['native']} native ({share}), "
            f"{engines['mixed']} mixed, {engines['spark']} Spark, {different} different"
        )
        for verdict in group:
            reasons.update(verdict.reasons)
    lines.append("docstrings blocked by:")
    lines += [f"{count:5} {reason}" for reason, count in reasons.most_common(40)]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.exit(main())
