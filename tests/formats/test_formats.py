# SPDX-License-Identifier: Apache-2.0
"""Every file format keeps to the contract of formats."""

from __future__ import annotations

import pytest

from volley.formats import FORMATS, format_of
from volley.formats.base import FileFormat
from volley.formats.parquet import Parquet
from volley.plan.file_scans import READ_RULES
from volley.plan.nodes import DataFile, FileScan
from volley.splits.files import FileSource, decode
from volley.stages.limits import DEFAULT_LIMITS as LIMITS
from volley.stages.scans import scan_tasks
from volley.testing.formats import FileFormatContract


def test_what_capture_lets_pass_has_a_format_and_the_other_way_round() -> None:
    assert FORMATS.keys() == READ_RULES.keys()
    assert all(format_of(name).name == name for name in FORMATS)


class TestParquet(FileFormatContract):
    @pytest.fixture
    def file_format(self) -> FileFormat:
        return format_of("parquet")


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
