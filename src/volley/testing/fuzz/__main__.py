# SPDX-License-Identifier: Apache-2.0
"""The command behind `make fuzz`: compare random programs with Spark for a while, and report what differs."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.findings import Case, draw_case, shrink_case
from volley.testing.fuzz.oracle import compare
from volley.testing.fuzz.programs import Program
from volley.testing.fuzz.rows import compare_rows, draw_expressions
from volley.testing.fuzz.session import local_session
from volley.testing.fuzz.tables import FILES, LEAVES, Table, draw_tables, register

PROGRAMS_PER_TABLES = 100
"""Creating tables takes as long as running several programs."""
PROGRAMS_PER_CHANGE = 12
"""Native programs that run again after the files have changed."""


class Report:
    def __init__(self) -> None:
        self.started = time.monotonic()
        self.engines: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.expressions: Counter[str] = Counter()
        self.findings: list[str] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def __str__(self) -> str:
        ran = sum(self.engines[engine] for engine in ("native", "mixed", "spark"))
        share = f"{100 * self.engines['native'] / ran:.0f} % native" if ran else "none ran"
        lines = [
            f"{ran} programs in {self.seconds:.0f} s ({ran / self.seconds:.1f} a second), {share}",
            str(dict(self.engines)),
            f"expressions, row by row: {dict(self.expressions)}",
            f"{len(self.findings)} findings",
            *(f"  {line}" for line in self.findings),
            "reasons for Spark:",
            *(f"  {count:5} {reason}" for reason, count in self.reasons.most_common(12)),
        ]
        return "\n".join(lines)


def fuzz(
    spark: SparkSession,
    seconds: float,
    seed: int,
    output: Path,
    rare_percent: int,
    leaves: Sequence[str],
    most: int,
) -> Report:
    report = Report()
    world = seed
    while report.seconds < seconds and len(report.findings) < most:
        with TemporaryDirectory() as directory:
            place = Path(directory)
            tables = _tables(spark, world, leaves, place)
            _try_expressions(spark, tables, world, rare_percent, report, place / "rows")
            ran: list[Program] = []
            for number in range(PROGRAMS_PER_TABLES):
                if report.seconds > seconds or len(report.findings) >= most:
                    break
                found = _try_one(spark, tables, f"{world}-{number}", output, rare_percent, report, ran)
                if found:
                    # Rows were removed while shrinking.
                    place = Path(directory) / f"again{number}"
                    tables = _tables(spark, world, leaves, place)
                if len(ran) >= PROGRAMS_PER_CHANGE:
                    tables = _change_files(spark, tables, place)
                    _try_again(spark, tables, f"{world}-{number}", output, ran, report)
                    ran.clear()
        spark.catalog.clearCache()
        world += 1
    return report


def _tables(spark: SparkSession, seed: int, leaves: Sequence[str], directory: Path) -> list[Table]:
    tables = draw_tables(Choices(seed), leaves)
    for table in tables:
        register(spark, table, directory)
    return tables


def _change_files(spark: SparkSession, tables: list[Table], directory: Path) -> list[Table]:
    """Write other rows to the files of tables, under the names of the old files."""
    changed = []
    for table in tables:
        if table.leaf in FILES:
            table = table.rotated()
            register(spark, table, directory)
        changed.append(table)
    return changed


def _try_again(
    spark: SparkSession, tables: list[Table], seed: str, output: Path, programs: list[Program], report: Report
) -> None:
    """Nothing that is kept of a query may outlive the files that it has read."""
    for program in programs:
        outcome = compare(spark, program)
        report.engines["after a change"] += 1
        if outcome.finding is not None:
            _write(Case(tuple(tables), program, outcome.finding), f"{seed} after a change", output, report)


def _try_expressions(
    spark: SparkSession, tables: list[Table], seed: int, rare_percent: int, report: Report, directory: Path
) -> None:
    """Expressions over the rows of one table, bit by bit."""
    table = max(tables, key=lambda table: len(table.rows))
    for ansi in (True, False):
        texts = draw_expressions(Choices(f"{seed}-rows-{ansi}"), table, 3 * rare_percent)
        for verdict in compare_rows(spark, table, texts, directory / str(ansi), ansi=ansi):
            report.expressions["native" if verdict.refusal is None else "refused"] += 1
            report.expressions["rows"] += verdict.equal
            if verdict.wrong or verdict.eager:
                problem = verdict.wrong[0] if verdict.wrong else f"{verdict.expression} is evaluated eagerly"
                report.findings.append(f"{seed} expression, ANSI {ansi}: {problem}")
                print(report.findings[-1], flush=True)


def _try_one(
    spark: SparkSession,
    tables: list[Table],
    seed: str,
    output: Path,
    rare_percent: int,
    report: Report,
    ran: list[Program],
) -> bool:
    """Whether the program was a finding. Those that ran natively are added to `ran`."""
    choices = Choices(seed)
    program = draw_case(choices, tables, rare_percent)
    outcome = compare(spark, program)
    report.engines[outcome.engine or "refused"] += 1
    report.engines["ambiguous"] += outcome.ambiguous
    report.engines["failed"] += outcome.failed
    if report.engines.total() % 100 == 0:
        print(f"{report.seconds:.0f} s: {dict(report.engines)}", flush=True)
    for reason in set(outcome.reasons):
        report.reasons[reason.partition(": ")[0]] += 1
    if outcome.finding is None:
        if outcome.engine == "native":
            ran.append(program)
        return False
    case = shrink_case(spark, tables, choices.made, outcome.finding, rare_percent)
    _write(case, seed, output, report)
    return True


def _write(case: Case, seed: str, output: Path, report: Report) -> None:
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"test_{case.name}.py"
    path.write_text(case.test(), encoding="utf-8")
    line = f"{seed} {case.finding.kind}: {case.finding.message.splitlines()[0][:200]} -> {path}"
    report.findings.append(line)
    print(f"{report.seconds:.0f} s: {line}\n{case.finding.message[:600]}\n{case.program.text}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("fuzz-findings"), help="where tests are written")
    parser.add_argument(
        "--rare", type=int, default=6, help="percentage of expressions that few types support"
    )
    parser.add_argument("--leaves", default=",".join(LEAVES), help="how tables may be stored")
    parser.add_argument("--most", type=int, default=20, help="stop after so many findings")
    options = parser.parse_args()
    spark = local_session("volley fuzz")
    report = fuzz(
        spark,
        options.seconds,
        options.seed,
        options.output,
        options.rare,
        options.leaves.split(","),
        options.most,
    )
    print(report)
    spark.stop()
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
