# SPDX-License-Identifier: Apache-2.0
"""Many small Avro files, some of them damaged: what is read natively of each is what Spark reads.

One query of Spark reads all files; Volley reads each for itself, whole and in parts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from helpers.random_avro import TYPES, RandomAvro
from helpers.text_files import read_natively
from volley.errors import DataError
from volley.plan.types import DataType
from volley.spark_versions.classic import collect_table
from volley.testing.session import conf

pytestmark = pytest.mark.since("4.0")

AVRO = "org.apache.spark.sql.avro.AvroFileFormat"


@pytest.mark.parametrize(
    "counts", [[300], pytest.param([1000] * 6, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_files(spark: SparkSession, tmp_path: Path, counts: list[int]) -> None:
    chance = random.Random(7 * len(counts))
    read = 0
    for number, count in enumerate(counts):
        kinds = {f"c{place}": chance.choice(list(TYPES)) for place in range(chance.randint(2, 5))}
        directory = tmp_path / str(number)
        directory.mkdir()
        for name in range(count):
            (directory / f"{name}.avro").write_bytes(RandomAvro(chance).file(kinds))
        columns = {name: TYPES[kind] for name, kind in kinds.items()}
        for wanted in (list(kinds), [chance.choice(list(kinds))], []):
            expected = spark_rows(spark, directory, kinds, wanted)
            read += compare(directory, columns, wanted, expected, chance)
    assert read > sum(counts), "few files were read natively"


def spark_rows(
    spark: SparkSession, directory: Path, kinds: dict[str, str], wanted: list[str]
) -> dict[str, list[str]]:
    """Spark's rows of each file, up to where it is corrupt."""
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    settings = {
        "spark.volley.enabled": "false",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.avro.datetimeRebaseModeInRead": "CORRECTED",
    }
    with conf(spark, settings):
        frame = spark.read.format(AVRO).schema(schema).load(str(directory))
        table = collect_table(frame.selectExpr(*wanted, "input_file_name()"))
    found = defaultdict(list)
    urls = table.column(len(wanted)).to_pylist()
    for url, row in zip(urls, _rows(table.select(range(len(wanted))), len(urls)), strict=True):
        found[url.rpartition("/")[2]].append(row)
    return found


def compare(
    directory: Path,
    columns: dict[str, DataType],
    wanted: list[str],
    expected: dict[str, list[str]],
    chance: random.Random,
) -> int:
    """Compare every file that is read natively, and return their number."""
    read = 0
    for path in sorted(directory.iterdir()):
        if path.suffix != ".avro":
            continue
        parts = chance.choice([1, 1, 2, 3, path.stat().st_size])
        try:
            batches = [
                batch
                for part in range(min(parts, 50))
                for batch in read_natively(
                    path, "avro", columns, {}, part=part, parts=min(parts, 50), wanted=wanted
                )
            ]
        except DataError:
            continue
        read += 1
        rows = [row for batch in batches for row in _rows(batch, batch.num_rows)]
        assert rows == expected[path.name], (path, wanted, parts)
    return read


def _rows(table: pa.Table | pa.RecordBatch, count: int) -> list[str]:
    """Rows as text. Python has not all dates and times, so they are numbers."""
    columns = [
        column.cast(pa.int32())
        if pa.types.is_date(column.type)
        else column.cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in table.columns
    ]
    return [str([_value(column[row]) for column in columns]) for row in range(count)]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        # Spark passes on what is no text; natively it is never read.
        return "no text"
