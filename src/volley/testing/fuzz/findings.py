# SPDX-License-Identifier: Apache-2.0
"""Shrinks a failing case, and writes it as a test."""

from __future__ import annotations

import hashlib
import pprint
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from volley.testing.fuzz.choices import Choices, shrink
from volley.testing.fuzz.oracle import Finding, compare
from volley.testing.fuzz.programs import Program, draw_program, draw_settings
from volley.testing.fuzz.tables import Table, register


@dataclass(frozen=True)
class Case:
    """A program over tables, and what is wrong with it."""

    tables: tuple[Table, ...]
    program: Program
    finding: Finding

    @property
    def name(self) -> str:
        digest = hashlib.sha256(repr((self.tables, self.program)).encode()).hexdigest()[:8]
        return f"{self.finding.kind}_{digest}"

    def test(self) -> str:
        """The case as a test module."""
        message = "\n".join(f"    {line.rstrip()}" for line in self.finding.message.splitlines()[:12])
        tables = pprint.pformat(list(self.tables), width=108)
        return (
            "# SPDX-License-Identifier: Apache-2.0\n"
            "from pathlib import Path\n\n"
            "from pyspark.sql import SparkSession\n\n"
            "from volley.testing.fuzz.oracle import assert_same_outcome\n"
            "from volley.testing.fuzz.programs import Program\n"
            "from volley.testing.fuzz.tables import Column, Table\n\n"
            f"TABLES = {tables}\n"
            f"SETTINGS = {pprint.pformat(self.program.settings, width=108)}\n"
            f"PROGRAM = {_literal(self.program.text)}\n\n\n"
            f"def test_{self.name}(spark: SparkSession, tmp_path: Path) -> None:\n"
            f'    r"""{self.finding.kind}:\n\n{message}\n    """\n'
            f"    program = Program(PROGRAM, {self.program.ordered}, SETTINGS, {self.program.repeated})\n"
            "    assert_same_outcome(spark, TABLES, program, tmp_path)\n"
        )


def draw_case(choices: Choices, tables: Sequence[Table], rare_percent: int) -> Program:
    settings = draw_settings(choices)
    return replace(draw_program(choices, tables, rare_percent), settings=settings)


def shrink_case(
    spark: SparkSession,
    tables: Sequence[Table],
    made: Sequence[int],
    finding: Finding,
    rare_percent: int,
    tries: int = 90,
) -> Case:
    """The smallest case found that fails in the same way."""
    found = {"finding": finding}

    def fails(candidate: list[int]) -> bool:
        program = draw_case(Choices(replay=candidate), tables, rare_percent)
        outcome = compare(spark, program)
        if finding.resembles(outcome.finding):
            assert outcome.finding is not None
            found["finding"] = outcome.finding
            return True
        return False

    best = shrink(made, fails, tries)
    program = draw_case(Choices(replay=best), tables, rare_percent)
    used = [table for table in tables if re.search(rf"\b{table.name}\b", program.text)]
    with TemporaryDirectory() as directory:
        smaller = _shrink_rows(spark, used, program, finding, Path(directory))
    return Case(tuple(smaller), program, found["finding"])


def _shrink_rows(
    spark: SparkSession, tables: list[Table], program: Program, finding: Finding, directory: Path
) -> list[Table]:
    number = 0

    def fails(table: Table) -> bool:
        nonlocal number
        number += 1
        register(spark, table, directory / str(number))
        return finding.resembles(compare(spark, program).finding)

    for position, table in enumerate(tables):
        size = max(1, len(table.rows) // 2)
        while size and number < 24:
            start = 0
            while start < len(table.rows) and number < 24:
                fewer = replace(table, rows=table.rows[:start] + table.rows[start + size :])
                if fails(fewer):
                    table = fewer
                else:
                    start += size
            size //= 2
        tables[position] = table
        register(spark, table, directory / f"kept{position}")
    return tables


def _literal(text: str) -> str:
    """A Python literal of a program, broken into lines where a clause begins."""
    parts = re.split(r"(?= (?:from|where|group by|order by|union|join|left join) )", text)
    return "(\n" + "\n".join(f"    {part!r}" for part in parts) + "\n)"
