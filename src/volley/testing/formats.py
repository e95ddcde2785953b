# SPDX-License-Identifier: Apache-2.0
"""The contract of `formats.base.FileFormat`, as a test suite to subclass."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from datafusion import SessionContext

from volley.errors import DataError
from volley.formats.base import FileFormat, FilePlan, WriteRequest
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, Range, WriteFiles
from volley.plan.types import LONG, STRING

NARROW, WIDE = Attribute(1, "Narrow", LONG), Attribute(2, "wide", STRING)
SCHEMA = pa.schema([pa.field("Narrow", pa.int64()), pa.field("wide", pa.string())])
ROWS = 3000
WRITE_DEFAULTS = {
    "parquet": {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.compression.codec": "snappy",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    }
}
"""Spark's defaults of the settings that a format decides about in `plan_write`."""


def write_node(file_format: FileFormat) -> WriteFiles:
    """A write node for one file, without partitions."""
    columns = (NARROW, WIDE)
    plan = file_format.plan_write(write_request(file_format))
    assert isinstance(plan, FilePlan)
    rows = Range(0, 1, 1, (NARROW,))
    return WriteFiles("", columns, (), True, None, plan.options, plan.metadata, rows, file_format.name)


def write_request(file_format: FileFormat, **settings: str) -> WriteRequest:
    """A write of the two columns under Spark's defaults."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("Narrow", "long"), ("wide", "string"))
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return WriteRequest((NARROW, WIDE), schema, WRITE_DEFAULTS[file_format.name] | settings, {}, "4.3.0")


def write(file_format: FileFormat, directory: Path, *batches: pa.RecordBatch) -> DataFile:
    path = directory / f"a{file_format.suffix}"
    writer = file_format.open_writer(path, SCHEMA, write_node(file_format))
    for batch in batches:
        writer.write(batch)
    writer.close()
    return DataFile(str(path), path.stat().st_size, 0)


class FileFormatContract:
    """Subclasses provide the fixture `file_format`. All files are written by the format itself."""

    @pytest.fixture
    def file_format(self) -> FileFormat:
        raise NotImplementedError

    @pytest.fixture
    def batch(self) -> pa.RecordBatch:
        texts = [f"{number * 2654435761 % 2**64:064x}" for number in range(ROWS)]
        return pa.record_batch([pa.array(range(ROWS), pa.int64()), pa.array(texts)], schema=SCHEMA)

    def test_what_is_written_is_read(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        write(file_format, tmp_path, batch.slice(0, 1000), batch.slice(1000))
        frame = file_format.read(SessionContext(), f"{tmp_path}/", SCHEMA, [])
        assert pa.Table.from_batches(frame.collect()).sort_by("Narrow").to_pylist() == batch.to_pylist()

    def test_a_plan_of_files_is_for_every_setting_that_it_asks_for(self, file_format: FileFormat) -> None:
        decided = {key for key, value in file_format.write_rules.settings.items() if value is None}
        assert decided == WRITE_DEFAULTS[file_format.name].keys()
        plan = file_format.plan_write(write_request(file_format))
        assert isinstance(plan, FilePlan)
        assert plan.suffix.endswith(file_format.suffix)

    def test_a_file_without_rows(self, file_format: FileFormat, tmp_path: Path) -> None:
        file = write(file_format, tmp_path)
        assert file_format.footer(file).column("narrow", LONG) is not None
        assert file_format.read(SessionContext(), f"{tmp_path}/", SCHEMA, []).count() == 0

    def test_folders_are_a_column(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        for number in range(2):
            folder = tmp_path / f"part={number}"
            folder.mkdir()
            write(file_format, folder, batch.slice(0, 5 + number))
        frame = file_format.read(SessionContext(), f"{tmp_path}/", SCHEMA, [("part", pa.int32())])
        rows = pa.Table.from_batches(frame.collect())
        assert sorted(rows.column("part").to_pylist()) == [0] * 5 + [1] * 6

    def test_a_footer_says_what_a_file_holds(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        footer = file_format.footer(write(file_format, tmp_path, batch))
        assert footer.column_bytes.keys() == {"narrow", "wide"}
        assert footer.column_bytes["wide"] > footer.column_bytes["narrow"] > 0
        field = footer.column("NARROW", LONG)
        assert field is not None
        assert (field.name, field.type) == ("Narrow", pa.int64())
        assert footer.column("absent", LONG) is None
        with pytest.raises(DataError, match="the plan expects"):
            footer.column("wide", LONG)

    def test_a_footer_lasts_as_long_as_its_file(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        file = write(file_format, tmp_path, batch)
        before = file_format.footer(file)
        assert file_format.footer(file) is before
        os.utime(file.path, (1, 1))
        assert file_format.footer(file) is not before

    def test_files_that_are_not_as_planned(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        file = write(file_format, tmp_path, batch)
        with pytest.raises(DataError, match="changed"):
            file_format.footer(DataFile(file.path, file.size_bytes + 1, 0))
        with pytest.raises(DataError, match="cannot be read"):
            file_format.footer(DataFile(str(tmp_path / "absent"), 1, 0))
        Path(file.path).write_bytes(b"x" * file.size_bytes)
        with pytest.raises(DataError, match="cannot be read"):
            file_format.footer(file)

    def test_an_abandoned_file_is_let_go(
        self, file_format: FileFormat, tmp_path: Path, batch: pa.RecordBatch
    ) -> None:
        writer = file_format.open_writer(tmp_path / "b", SCHEMA, write_node(file_format))
        writer.write(batch)
        writer.abandon()
        (tmp_path / "b").unlink()
