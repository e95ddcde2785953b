# SPDX-License-Identifier: Apache-2.0
"""Random Avro files, read with their own or random schemas, settings and filters: rows and errors are Spark's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from helpers.random_avro import TYPES, RandomAvro
from helpers.sampling import draw_files
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.0")

AVRO = "org.apache.spark.sql.avro.AvroFileFormat"
SETTINGS = {
    "spark.sql.session.timeZone": ["America/New_York"],
    "spark.sql.avro.datetimeRebaseModeInRead": ["LEGACY", "EXCEPTION"],
    "spark.sql.files.maxPartitionBytes": ["100"],
    "spark.sql.files.ignoreCorruptFiles": ["true"],
    "spark.sql.caseSensitive": ["true"],
    "spark.sql.avro.filterPushdown.enabled": ["false"],
}
OPTIONS = {
    "ignoreExtension": ["true", "false"],
    "positionalFieldMatching": ["true", "false"],
    "datetimeRebaseMode": ["LEGACY", "CORRECTED"],
    "enableStableIdentifiersForUnionType": ["true"],
    "recursiveFieldMaxDepth": ["3"],
    "mode": ["PERMISSIVE"],
    "unknown": ["x"],
}
CONDITIONS = (
    "true",
    "true",
    "{0} is not null",
    "{1} is null",
    "{0} <=> {0}",
    "isnull({0}) or isnotnull({1})",
)
COLUMNS = ("*", "*", "{0}", "{1}; {0}", "count(*)", "count({1})", "{0}; spark_partition_id()")


@dataclass(frozen=True)
class Case:
    """Columns of files that a seed decides, what is asked for, and a query."""

    seed: int
    files: int
    kinds: Sequence[str]
    has_schema: bool
    settings: dict[str, str]
    options: dict[str, str]
    columns: str
    condition: str

    def write(self, directory: Path) -> None:
        files = RandomAvro(random.Random(self.seed))
        for number in range(self.files):
            (directory / f"{number}.avro").write_bytes(files.file(self._columns))

    def frame(self, spark: SparkSession, directory: Path) -> DataFrame:
        reader = spark.read.format(AVRO).options(**self.options)
        if self.has_schema:
            reader = reader.schema(
                ", ".join(f"{name.upper()} {kind}" for name, kind in self._columns.items())
            )
        names = (*self._columns, "c0")[:2]
        columns = self.columns.format(*names).split("; ")
        return reader.load(str(directory)).where(self.condition.format(*names)).selectExpr(*columns)

    @property
    def _columns(self) -> dict[str, str]:
        return {f"c{place}": kind for place, kind in enumerate(self.kinds)}


def pairs(table: dict[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    pair = st.sampled_from([(key, value) for key, values in table.items() for value in values])
    return st.lists(pair, max_size=1).map(dict)


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32),
    files=st.integers(1, 3),
    kinds=st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3),
    has_schema=st.sampled_from([True, True, False]),
    settings=pairs(SETTINGS),
    options=pairs(OPTIONS),
    columns=st.sampled_from(COLUMNS),
    condition=st.sampled_from(CONDITIONS),
)


def check(spark: SparkSession, home: Path, case: Case) -> None:
    directory = home / "table"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    case.write(directory)
    with conf(spark, case.settings):
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(spark, case, directory)
        found = outcome(spark, case, directory)
        assert found == expected, (found, expected, case)


def outcome(spark: SparkSession, case: Case, directory: Path) -> list[str] | str:
    """The rows as text, or the class of the error."""
    try:
        return sorted(map(str, case.frame(spark, directory).collect()))
    except Exception as error:
        return type(error).__name__


@draw_files(8)
@given(CASES)
def test_avro_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)


@pytest.mark.slow
@draw_files(250, shrink=True)
@given(CASES)
def test_more_avro_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)
