# SPDX-License-Identifier: Apache-2.0
"""Columns that Spark finds in Parquet files by their field ids, whatever their names are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

import volley
from helpers.sampling import draw_files
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

ENABLED = "spark.sql.parquet.fieldId.read.enabled"
IGNORE_MISSING = "spark.sql.parquet.fieldId.read.ignoreMissing"
Reading = Callable[[SparkSession], DataFrame]


def stored(name: str, data_type: pa.DataType, number: int | None) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)} if number else None)


def wanted(name: str, data_type: DataType, number: int | None = None) -> StructField:
    return StructField(name, data_type, metadata={"parquet.field.id": number} if number else None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two files of a table in which columns were renamed, added and made wider."""
    old = pa.struct([stored("x", pa.int32(), 4), stored("y", pa.int32(), 5)])
    write(
        tmp_path / "0.parquet",
        [
            stored("a", pa.int32(), 1),
            stored("b", pa.int64(), 2),
            stored("s", pa.string(), 3),
            stored("r", old, 6),
            stored("l", pa.list_(stored("element", old, 8)), 7),
        ],
        [{"a": n, "b": -n, "s": str(n), "r": {"x": n, "y": 10 * n}, "l": [{"x": n}, None]} for n in range(5)],
    )
    new = pa.struct([stored("y", pa.int32(), 4), stored("z", pa.string(), 9)])
    write(
        tmp_path / "1.parquet",
        [
            stored("b", pa.int64(), 1),
            stored("a", pa.int64(), 2),
            stored("t", pa.string(), 10),
            stored("r", new, 6),
            stored("l", pa.list_(stored("element", new, 8)), 7),
        ],
        [{"b": n, "a": -n, "t": "t", "r": None, "l": [{"y": n, "z": "z"}]} for n in range(5, 10)],
    )
    return str(tmp_path)


def write(path: Path, fields: Sequence[pa.Field], rows: Sequence[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), path)


def reading(path: str, *fields: StructField) -> Reading:
    return lambda spark: spark.read.schema(StructType(list(fields))).parquet(path)


INSIDE = StructType([wanted("why", IntegerType(), 4), wanted("zed", StringType(), 9)])


@pytest.mark.parametrize(
    "fields",
    [
        [wanted("renamed", LongType(), 1)],
        # By name these would be other columns.
        [wanted("b", LongType(), 1), wanted("a", LongType(), 2)],
        [wanted("t", StringType(), 3), wanted("s", StringType(), 10)],
        [wanted("missing", StringType(), 99), wanted("one", LongType(), 1)],
        [wanted("missing", StringType(), 99)],
        [wanted("gone", ArrayType(LongType()), 98), wanted("one", LongType(), 1)],
        # The others are found by name.
        [wanted("one", LongType(), 1), wanted("s", StringType()), wanted("t", StringType())],
        [wanted("r", StructType([wanted("only", IntegerType(), 4)]), 6)],
        [wanted("record", INSIDE, 6), wanted("one", LongType(), 1)],
        [wanted("list", ArrayType(INSIDE), 7)],
    ],
    ids=[
        "renamed",
        "swapped",
        "moved",
        "missing",
        "all_missing",
        "missing_list",
        "names",
        "inside",
        "more",
        "elements",
    ],
)
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_columns_are_found_by_id(
    spark: SparkSession, path: str, fields: list[StructField], vectorized: str
) -> None:
    with conf(spark, {ENABLED: "true", "spark.sql.parquet.enableVectorizedReader": vectorized}):
        assert_same_rows(spark, reading(path, *fields))
        assert_same_rows(spark, lambda session: reading(path, *fields)(session).groupBy().count())
    report = volley.last_query(spark)
    assert report is not None
    assert report.engine == "native"


@pytest.mark.parametrize(
    "fields",
    [
        [wanted("one", LongType(), 1), wanted("again", LongType(), 1)],
        [wanted("record", StructType([wanted("gone", IntegerType(), 77)]), 6)],
        [wanted("narrow", IntegerType(), 2)],
    ],
    ids=["twice", "no_field", "narrow"],
)
def test_what_only_spark_decides_about_files(
    spark: SparkSession, path: str, fields: list[StructField]
) -> None:
    """Its error, and whether a struct is NULL of which no field is in the file."""
    with conf(spark, {ENABLED: "true"}):
        outcomes = []
        for enabled in ("true", "false"):
            with conf(spark, {"spark.volley.enabled": enabled}):
                outcomes.append(outcome(lambda: reading(path, *fields)(spark)))
    assert outcomes[0] == outcomes[1]


def outcome(frame: Callable[[], DataFrame]) -> list[str] | str:
    """The rows as text, or the class of the error."""
    try:
        return sorted(str(row) for row in frame().collect())
    except Exception as error:
        return type(error).__name__


def test_files_without_ids(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "0.parquet")
    frame = reading(str(tmp_path), wanted("a", LongType(), 1))
    with conf(spark, {ENABLED: "true", IGNORE_MISSING: "true"}):
        assert assert_same_rows(spark, frame)["a"].null_count == 2
    with conf(spark, {IGNORE_MISSING: "true"}):
        assert assert_same_rows(spark, frame)["a"].null_count == 0
    # Spark wants ids in the file even where it goes by names.
    for enabled in ("true", "false"):
        with conf(spark, {ENABLED: enabled}):
            assert isinstance(outcome(lambda: frame(spark)), str)
    assert_same_rows(spark, lambda session: frame(session).groupBy().count())


def test_a_filter_by_a_name_that_is_another_column_in_the_file(spark: SparkSession, path: str) -> None:
    """Spark leaves out row groups by the statistics of what has the name in the file."""
    frame = reading(path, wanted("b", LongType(), 1))
    with conf(spark, {ENABLED: "true"}):
        assert_same_rows(spark, lambda session: frame(session).where("b > 2"), native=False)
        report = volley.last_query(spark)
        assert report is not None
        assert any("another column of this name" in str(reason) for reason in report.reasons)
    own = reading(path, wanted("mine", LongType(), 1))
    with conf(spark, {ENABLED: "true"}):
        assert assert_same_rows(spark, lambda session: own(session).where("mine > 2")).num_rows == 7


# --------------------------------------------------------------------------- random files and schemas

_NAMES = ("a", "b", "c")
_IDS = (None, 1, 2, 3)
_STORED = {"int": pa.int32(), "long": pa.int64(), "text": pa.string()}
_WANTED = {"int": IntegerType(), "long": LongType(), "text": StringType()}
_VALUES: dict[str, list[Any]] = {"int": [1, -2, None], "long": [1, 2**40, None], "text": ["x", "", None]}


@dataclass(frozen=True)
class Column:
    """A column of a file or of a schema; a struct if there are `inside`, a list of structs if also `many`."""

    name: str
    number: int | None
    kind: str
    inside: tuple[Column, ...] = ()
    many: bool = False

    @property
    def in_file(self) -> pa.Field:
        kind = pa.struct([part.in_file for part in self.inside]) if self.inside else _STORED[self.kind]
        return stored(self.name, pa.list_(kind) if self.many else kind, self.number)

    @property
    def in_schema(self) -> StructField:
        kind: DataType = (
            StructType([part.in_schema for part in self.inside]) if self.inside else _WANTED[self.kind]
        )
        return wanted(self.name, ArrayType(kind) if self.many else kind, self.number)

    def value(self, draw: st.DrawFn) -> Any:
        if not self.inside:
            return draw(st.sampled_from(_VALUES[self.kind]))
        if draw(st.integers(0, 3)) == 0:
            return None
        one = {part.name: part.value(draw) for part in self.inside}
        return [one, None] if self.many else one


@st.composite
def columns(draw: st.DrawFn, depth: int = 0) -> tuple[Column, ...]:
    """Columns with different names, of which some have ids."""
    found = []
    for name in draw(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True)):
        number = draw(st.sampled_from(_IDS))
        inside = draw(columns(depth + 1)) if depth == 0 and draw(st.integers(0, 2)) == 0 else ()
        kind = draw(st.sampled_from(sorted(_STORED)))
        found.append(Column(name, number, kind, inside, bool(inside) and draw(st.booleans())))
    return tuple(found)


@dataclass(frozen=True)
class Case:
    files: list[tuple[tuple[Column, ...], list[dict[str, Any]]]]
    schema: tuple[Column, ...]
    settings: dict[str, str]
    filtered: str | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    files = []
    for _ in range(draw(st.integers(1, 3))):
        found = draw(columns())
        count = draw(st.integers(0, 3))
        files.append((found, [{c.name: c.value(draw) for c in found} for _ in range(count)]))
    schema = files[0][0] if draw(st.booleans()) else draw(columns())
    if draw(st.booleans()):
        # The columns of a file under other names.
        renamed = draw(st.permutations(_NAMES))
        schema = tuple(replace(column, name=name) for column, name in zip(schema, renamed, strict=False))
    settings = {
        ENABLED: draw(st.sampled_from(["true", "true", "false"])),
        IGNORE_MISSING: draw(st.sampled_from(["true", "false"])),
        "spark.sql.parquet.enableVectorizedReader": draw(st.sampled_from(["true", "false"])),
    }
    filtered = draw(st.sampled_from([None, *(column.name for column in schema)]))
    return Case(files, schema, settings, filtered)


def check(spark: SparkSession, home: Path, case: Case) -> None:
    directory = home / "table"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for number, (there, rows) in enumerate(case.files):
        write(directory / f"{number}.parquet", [column.in_file for column in there], rows)
    frame = reading(str(directory), *(column.in_schema for column in case.schema))

    def run() -> DataFrame:
        read = frame(spark)
        return read if case.filtered is None else read.where(read[case.filtered].isNotNull())

    with conf(spark, case.settings):
        with conf(spark, {"spark.volley.enabled": "false"}):
            expected = outcome(run)
        found = outcome(run)
    assert found == expected, case


FEW = draw_files(8)
MANY = draw_files(400, shrink=True)


@FEW
@given(cases())
def test_random_ids(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)


@pytest.mark.slow
@MANY
@given(cases())
def test_more_random_ids(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)
