# SPDX-License-Identifier: Apache-2.0
"""CSV records of several lines: blocks hold whole records, and what is read natively is read as Spark reads it."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from helpers.text_files import read_natively
from volley.errors import DataError
from volley.formats import records
from volley.formats.lines import TextForm
from volley.formats.records import read_records
from volley.plan.nodes import DataFile
from volley.plan.types import STRING
from volley.testing.rows import assert_same_rows

SEVERAL_LINES = {"multiLine": "true"}
COLUMNS = dict.fromkeys("abc", STRING)
PIECES = [
    ",",
    ",",
    ",",
    "\n",
    "\n",
    "\n",
    "\r\n",
    '"',
    '"',
    '"',
    '""',
    "\\",
    "a",
    "b",
    " ",
    "é",
    "\t",
    "#",
    "\x01",
]
DIALECTS: list[dict[str, str]] = [
    {},
    {"escape": '"'},
    {"header": "true"},
    {"quote": ""},
    {"comment": "#", "nullValue": "a", "emptyValue": "b"},
    {"encoding": "ISO-8859-1", "ignoreLeadingWhiteSpace": "true"},
]


@given(
    st.lists(st.sampled_from([b"a", b"bb", b'"', b"\n", b'"\n"', b",c\n"]), max_size=30),
    st.sampled_from([1, 2, 5, 100]),
)
def test_blocks_hold_whole_records(pieces: list[bytes], block_bytes: int) -> None:
    data = b"".join(pieces)
    with tempfile.NamedTemporaryFile() as opened:
        path = Path(opened.name)
        path.write_bytes(data)
        file = DataFile(str(path), len(data), 0)
        blocks = list(read_records(file, '"', TextForm(), block_bytes=block_bytes))
    assert b"".join(blocks) == data
    assert all(block.endswith(b"\n") and block.count(b'"') % 2 == 0 for block in blocks[:-1])


def test_a_record_is_not_the_rest_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LONGEST_RECORD_BYTES", 1000)
    path = tmp_path / "file"
    path.write_bytes(b'a,"b\n' + b"c,d\n" * 1000)
    file = DataFile(str(path), path.stat().st_size, 0)
    with pytest.raises(DataError, match="a record of more than 1000 bytes"):
        list(read_records(file, '"', TextForm(), block_bytes=100))


@pytest.mark.parametrize("options", DIALECTS, ids=str)
def test_files_with_a_native_form(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    check_files(spark, tmp_path, options, random_files(random.Random(1), 1_000, options), least=5)


@pytest.mark.slow
@pytest.mark.parametrize("options", DIALECTS, ids=str)
def test_more_files_with_a_native_form(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    check_files(spark, tmp_path, options, random_files(random.Random(2), 20_000, options), least=100)


def random_files(chance: random.Random, count: int, options: dict[str, str]) -> list[bytes]:
    files = []
    for _ in range(count):
        fields = []
        for _ in range(3 * chance.randint(1, 3)):
            text = "".join(chance.choices(PIECES, k=chance.randint(0, 3)))
            fields.append(f'"{text}"' if chance.random() < 0.5 else text)
        ends = chance.choice(["\n", "\n", "\r\n"])
        rows = [",".join(fields[first : first + 3]) for first in range(0, len(fields), 3)]
        text = ends.join(rows) + chance.choice(["", ends])
        files.append(text.encode(options.get("encoding", "utf-8")))
    return files


def check_files(
    spark: SparkSession, directory: Path, options: dict[str, str], files: list[bytes], least: int
) -> None:
    """Compare the files that have a native form with Spark, those with records of several lines among them."""
    given = options | SEVERAL_LINES
    path = directory / "file"
    table = directory / "table"
    table.mkdir()
    found = several = 0
    for data in files:
        path.write_bytes(data)
        try:
            batches = read_natively(path, "csv", COLUMNS, given | {"mode": "FAILFAST"})
        except DataError:
            continue
        found += 1
        several += any("\n" in str(value) for batch in batches for value in batch.column(0).to_pylist())
        (table / f"{found}.csv").write_bytes(data)
    assert found > least
    assert several or options.get("quote") == "" or "ignoreLeadingWhiteSpace" in options
    assert_same_rows(
        spark,
        lambda session: session.read.options(**given).schema("a string, b string, c string").csv(str(table)),
    )


def test_queries_over_records_of_several_lines(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        rows = [f'{n},"text\n{n}, {number}",{n / 8}' for n in range(20_000)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["n,s,x", *rows]))
    reader = spark.read.options(header=True, **SEVERAL_LINES).schema("n bigint, s string, x double")
    reader.csv(str(tmp_path)).createOrReplaceTempView("several_lines")
    for query in (
        "SELECT count(*) FROM several_lines",
        "SELECT n % 7 AS k, count(*), max(s), sum(x) FROM several_lines GROUP BY 1",
        "SELECT a.s FROM several_lines a JOIN several_lines b ON a.n = b.n WHERE b.x > 2490",
        "SELECT s, monotonically_increasing_id() FROM several_lines WHERE n < 50",
    ):
        assert_same_rows(spark, query)
