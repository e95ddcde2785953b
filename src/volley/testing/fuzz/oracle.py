# SPDX-License-Identifier: Apache-2.0
"""Runs a program on Spark and on Volley, and says how they differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import volley
from volley.bench.compare import difference
from volley.bench.order import sort_columns
from volley.spark_versions.classic import collect_table
from volley.spark_versions.registry import current
from volley.support.reasons import Reason
from volley.testing.fuzz.programs import MEANING, Program
from volley.testing.fuzz.tables import Table, register
from volley.testing.rows import PLAIN
from volley.testing.session import conf

_OFF = {"spark.volley.enabled": "false"}
_ON = {"spark.volley.enabled": "true"}

# A native run may fail because of a value that only Spark handles. No other failure is planned.
_OF_DATA = re.compile(
    "ExactnessError|is not plain|Cast error|Invalid argument|Divide by zero|[Oo]verflow|ArrowInvalid|Parser error"
    "|Compute error"
)

_IN_JAVA = "crash: Py4JJavaError"
_CODE = re.compile(r"\[[A-Z_]+\]")


@dataclass(frozen=True)
class Finding:
    """A defect. `kind`: rows (another result), error (another outcome), replay (the native run failed, but not because
    of a value) or crash (an error that is not Spark's)."""

    kind: str
    message: str

    def resembles(self, other: Finding | None) -> bool:
        return other is not None and self.kind == other.kind


@dataclass(frozen=True)
class Outcome:
    """`engine` is None if Spark's analyzer refused the program. `ambiguous`: Spark itself has several answers."""

    engine: str | None
    reasons: tuple[str, ...] = ()
    finding: Finding | None = None
    ambiguous: bool = False
    failed: bool = False


@dataclass(frozen=True)
class _Run:
    table: pa.Table | None
    error: str | None = None


def compare(spark: SparkSession, program: Program) -> Outcome:
    meaning = {key: value for key, value in program.settings.items() if key in MEANING}
    try:
        expected = _run(spark, program, meaning | _OFF | PLAIN)
        # Some hints are resolved only where Spark plans adaptively.
        with conf(spark, program.settings | _OFF):
            program.frame(spark)
    except AnalysisException:
        return Outcome(None)
    with conf(spark, program.settings | _ON):
        frame = program.frame(spark)
        actual = _attempt(lambda: collect_table(frame))
        if program.repeated and actual.error is None:
            actual = _attempt(program.frame(spark).toArrow)
        report: Any = volley.last_query(spark)
        order = sort_columns(frame) if program.ordered else None
    reasons = tuple(str(reason) for reason in report.reasons)
    failed = expected.error is not None
    finding = _finding(expected, actual, order, report)
    if finding is not None and finding.kind != "replay":
        # A result that Spark gives too, when it plans the query in the same way, is not wrong.
        again = _run(spark, program, program.settings | _OFF)
        if _finding(again, actual, order, report) is None:
            return Outcome(report.engine, reasons, None, True, failed)
    return Outcome(report.engine, reasons, finding, False, failed)


def assert_same_outcome(
    spark: SparkSession, tables: Sequence[Table], program: Program, directory: Path
) -> None:
    """Fail if Volley's rows or error differ from Spark's, or if the native run had to be replayed."""
    for table in tables:
        register(spark, table, directory)
    outcome = compare(spark, program)
    assert outcome.engine is not None, "Spark's analyzer refuses the program"
    assert outcome.finding is None, f"{outcome.finding.kind}: {outcome.finding.message}"


def _run(spark: SparkSession, program: Program, settings: dict[str, str]) -> _Run:
    with conf(spark, settings):
        frame = program.frame(spark)
        return _attempt(frame.toArrow)


def _attempt(action: Any) -> _Run:
    try:
        return _Run(action())
    except PySparkException as error:
        return _Run(None, getattr(error, current().condition_method)() or type(error).__name__)
    except Exception as error:  # whatever is not an error of Spark is a finding
        return _Run(None, f"crash: {type(error).__name__}: {str(error)[:300]}")


def _is_planned(replay: str) -> bool:
    """Whether a value made the native run fail, by a check that is there for it. Others have a code in their text."""
    return bool(_OF_DATA.search(replay)) or not _CODE.search(replay.partition("]")[2])


def _finding(expected: _Run, actual: _Run, order: list[int] | None, report: Any) -> Finding | None:
    replay = next((reason for reason in report.reasons if reason.reason is Reason.REPLAY), None)
    if actual.error is not None:
        if actual.error.startswith(_IN_JAVA) and (expected.error or "").startswith(_IN_JAVA):
            # Spark's optimizer fails for some plans, and names the call that waited for it.
            return None
        if actual.error.startswith("crash") and expected.error != actual.error:
            return Finding("crash", actual.error)
        if expected.error != actual.error:
            return Finding("error", f"Spark: {expected.error or 'rows'}; Volley: {actual.error}")
        return None
    assert actual.table is not None
    if expected.table is None:
        return Finding("error", f"Spark: {expected.error}; Volley: {actual.table.num_rows} rows")
    if problem := difference(expected.table, actual.table, order):
        return Finding("rows", problem)
    failure = next((reason for reason in report.reasons if reason.reason is Reason.FAILED), None)
    if failure is not None:
        return Finding("crash", str(failure))
    if replay is None or _is_planned(str(replay)):
        return None
    return Finding("replay", str(replay))
