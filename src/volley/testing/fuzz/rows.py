# SPDX-License-Identifier: Apache-2.0
"""Random expressions over the rows of a table, compared bit by bit, many at a time.

A program compares what it returns; one bad row fails it as a whole. Here each expression and each row counts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from volley.spark_versions.classic import collect_table
from volley.testing.expressions import Verdict, compare_expressions
from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.grammar import COMMON, Expressions
from volley.testing.fuzz.tables import Table
from volley.testing.session import conf

EXPRESSIONS_PER_TABLE = 60
_FOLDING = "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"


def draw_expressions(choices: Choices, table: Table, rare_percent: int) -> list[str]:
    draw = Expressions(choices, table.columns, rare_percent)
    texts = [draw.draw(choices.pick(list(COMMON)), 3) for _ in range(EXPRESSIONS_PER_TABLE)]
    names = [column.name for column in table.columns]
    return [text for text in dict.fromkeys(texts) if any(name in text for name in names)]


def compare_rows(
    spark: SparkSession, table: Table, texts: Sequence[str], directory: Path, *, ansi: bool
) -> Iterator[Verdict]:
    """The verdicts on the expressions that Spark accepts."""
    directory.mkdir(parents=True, exist_ok=True)
    with conf(spark, {"spark.volley.enabled": "false", "spark.sql.ansi.enabled": "true"}):
        rows = collect_table(spark.sql(table.values))
    # What is folded while Spark plans may fail there, and no expression would be compared.
    with conf(spark, {"spark.sql.optimizer.excludedRules": _FOLDING}):
        yield from _compare(spark, rows, list(texts), directory, ansi)


def _compare(
    spark: SparkSession, rows: pa.Table, texts: list[str], directory: Path, ansi: bool
) -> Iterator[Verdict]:
    """All of them in one query, or in halves if Spark refuses one."""
    try:
        yield from compare_expressions(spark, rows, texts, directory, ansi=ansi)
    except (PySparkException, AssertionError, pa.ArrowException):
        # Arrow refuses the NULL of a failure inside a struct whose fields are never NULL.
        if len(texts) > 1:
            half = len(texts) // 2
            yield from _compare(spark, rows, texts[:half], directory, ansi)
            yield from _compare(spark, rows, texts[half:], directory, ansi)
