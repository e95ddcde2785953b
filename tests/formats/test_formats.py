# SPDX-License-Identifier: Apache-2.0
"""Every file format keeps to the contract of formats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from volley.formats import FORMATS, STREAMED, format_of
from volley.formats.base import FileFormat, FilePlan, NotWritable
from volley.formats.parquet import Parquet
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, FileScan
from volley.plan.read_rules import READ_RULES
from volley.plan.types import TIMESTAMP_NTZ
from volley.splits.files import FileSource, decode
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.scans import scan_tasks
from volley.testing.formats import FileFormatContract, write_request


def test_what_capture_lets_pass_has_a_format_and_the_other_way_round() -> None:
    assert FORMATS.keys() | STREAMED.keys() == READ_RULES.keys()
    assert all(format_of(name).name == name for name in FORMATS)


class TestParquet(FileFormatContract):
    @pytest.fixture
    def file_format(self) -> FileFormat:
        return format_of("parquet")


def parquet_plan(options: dict[str, str], **settings: str) -> FilePlan | NotWritable:
    request = write_request(Parquet())
    return Parquet().plan_write(replace(request, options=options, settings={**request.settings, **settings}))


CODEC, STAMPS = "spark.sql.parquet.compression.codec", "spark.sql.parquet.outputTimestampType"


@pytest.mark.parametrize(
    ("options", "setting", "suffix"),
    [
        ({}, "snappy", ".snappy.parquet"),
        ({}, "NONE", ".parquet"),
        ({"parquet.compression": "GZIP"}, "snappy", ".gz.parquet"),
        ({"parquet.compression": "gzip", "compression": "zstd"}, "snappy", ".zstd.parquet"),
        ({"compression": "lz4_raw"}, "snappy", ".lz4raw.parquet"),
    ],
)
def test_the_codec_of_parquet_files(options: dict[str, str], setting: str, suffix: str) -> None:
    plan = parquet_plan(options, **{CODEC: setting})
    assert isinstance(plan, FilePlan)
    assert plan.suffix == suffix


def test_parquet_files_that_only_spark_writes() -> None:
    for codec in ("lz4", "lzo", "brotli", "nonsense"):
        assert parquet_plan({"compression": codec}) == NotWritable("compression", codec)
    assert parquet_plan({}, **{STAMPS: "TIMESTAMP_MILLIS"}) == NotWritable(
        "outputTimestampType", "TIMESTAMP_MILLIS"
    )
    local = replace(write_request(Parquet()), columns=(Attribute(1, "t", TIMESTAMP_NTZ),))
    assert Parquet().plan_write(local) == NotWritable("outputTimestampType", "INT96")


class Whole(Parquet):
    """A format of which only whole files can be read."""

    name = "whole"
    splittable = False


def test_a_file_that_cannot_be_split_is_read_by_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "whole", Whole())
    large = DataFile("/data/large", 100 * LIMITS.max_split_bytes, 0)
    for name, tasks in (("whole", 1), ("parquet", 4)):
        scan = FileScan(name, (large,), (), (), ())
        assert scan_tasks(scan, 4, LIMITS) == tasks
        splits = [decode(split.payload) for split in FileSource(scan, 4, LIMITS).splits()]
        assert (len(splits) == 1) == (name == "whole")
        assert {piece.files for piece in splits} == {(large,)}
