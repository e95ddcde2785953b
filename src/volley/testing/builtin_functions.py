# SPDX-License-Identifier: Apache-2.0
"""Spark's built-in functions, with the examples of their documentation as queries over columns.

Spark folds an expression of constants, so that an example would show nothing. The constants of all examples become the
columns of one table, with NULLs among them:

    > SELECT substring('Spark SQL', 5);       ->    SELECT substring(x17, x4) FROM constants

A function that needs a constant somewhere refuses a column there; then fewer constants are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from volley.testing.session import conf

VIEW = "constants"
_FILE = "constants.parquet"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
SETTINGS = {
    # Examples that keep their constants must still be evaluated.
    _EXCLUDED: f"{_OPTIMIZER}.ConstantFolding,{_OPTIMIZER}.ConvertToLocalRelation",
    "spark.sql.timeType.enabled": "true",
}

_EXAMPLE = re.compile(r"^\s*> (SELECT.*?);\s*$", re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(r"(?<![\w.'\"])(?:'([^'\\]*)'|(-?\d+(?:\.\d+)?)(?![\w.']))")
_TYPED = re.compile(r"(DATE|TIMESTAMP|TIMESTAMP_NTZ|TIMESTAMP_LTZ|TIME|INTERVAL|X|R)$", re.IGNORECASE)
_RELATION = re.compile(r"\bFROM\s+(VALUES|\(|\w+\b(?!\s*'))|\bOVER\b|\bLATERAL\b", re.IGNORECASE)
_CLAUSES_OF_FUNCTIONS = re.compile(r"\b(EXTRACT|TRIM|SUBSTRING|OVERLAY)\s*\(", re.IGNORECASE)


@dataclass(frozen=True)
class Function:
    """A function of SHOW FUNCTIONS, by Spark's group of it (`string_funcs`, `agg_funcs`, ...)."""

    name: str
    group: str
    examples: tuple[str, ...]


def builtin_functions(spark: SparkSession) -> list[Function]:
    """All of them, by name."""
    jvm = spark._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst
    names = catalyst.analysis.FunctionRegistry.functionSet().mkString("\n").split("\n")
    catalog = spark._jsparkSession.sessionState().catalog()
    found = []
    for name in sorted({name.rpartition(".")[2] for name in names}):
        info = catalog.lookupFunctionInfo(catalyst.FunctionIdentifier(name))
        examples = tuple(match[1] for match in _EXAMPLE.finditer(info.getExamples() or ""))
        found.append(Function(name, info.getGroup(), examples))
    return found


@dataclass
class Constants:
    """The columns that stand for the constants of examples."""

    names: dict[str, str] = field(default_factory=dict)

    def variants(self, example: str) -> Iterator[str]:
        """The example as queries over the view, those with most columns first; itself if it has rows of its own."""
        if _RELATION.search(example) and not _CLAUSES_OF_FUNCTIONS.search(example):
            yield example
            return
        constants = len(list(_CONSTANT.finditer(example)))
        for kept in (None, *range(constants), constants):
            yield f"{self._replace(example, kept)} FROM {VIEW}"

    def _replace(self, example: str, only: int | None) -> str:
        places = iter(range(len(example)))

        def column(match: re.Match[str]) -> str:
            place = next(places)
            typed = _TYPED.search(example[: match.start()].rstrip())
            if (only is not None and place != only) or typed:
                return match[0]
            return self.names.setdefault(match[0], f"x{len(self.names)}")

        return _CONSTANT.sub(column, example)

    def write(self, directory: Path) -> None:
        columns = {name: _column(text) for text, name in self.names.items()}
        pq.write_table(pa.table(columns), str(directory / _FILE))


def create_view(spark: SparkSession, directory: Path) -> None:
    """The table that queries read, once they have been made in this directory."""
    spark.read.parquet(str(directory / _FILE)).createOrReplaceTempView(VIEW)


def _column(constant: str) -> pa.Array:
    """Four rows of the constant, one of them NULL."""
    if constant.startswith("'"):
        text = constant[1:-1]
        return pa.array([text, None, text, text])
    if "." in constant:
        digits, scale = len(constant.strip("-").replace(".", "")), len(constant.partition(".")[2])
        number = Decimal(constant)
        return pa.array([number, None, number, number], pa.decimal128(digits, scale))
    whole = int(constant)
    return pa.array([whole, whole, None, whole], pa.int32() if abs(whole) < 2**31 else pa.int64())


def queries(spark: SparkSession, functions: list[Function], directory: Path) -> dict[str, list[str]]:
    """For each function its examples, in the first variant of each that Spark accepts. Needs `SETTINGS`."""
    constants = Constants()
    variants = {f.name: [list(constants.variants(example)) for example in f.examples] for f in functions}
    constants.write(directory)
    create_view(spark, directory)
    found = {}
    for name, examples in variants.items():
        accepted = [next(filter(lambda text: _is_accepted(spark, text), texts), None) for texts in examples]
        found[name] = [text for text in accepted if text is not None]
    return found


def settings_for(query: str) -> dict[str, str]:
    """The settings of a query of `queries`. In one with rows of its own, constants are folded as usual."""
    if f"FROM {VIEW}" in query:
        return SETTINGS
    return SETTINGS | {_EXCLUDED: f"{_OPTIMIZER}.ConvertToLocalRelation"}


def _is_accepted(spark: SparkSession, query: str) -> bool:
    try:
        with conf(spark, {"spark.volley.enabled": "false"}):
            spark.sql(query)
    except (PySparkException, Py4JJavaError):
        return False
    return True
