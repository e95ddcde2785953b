# SPDX-License-Identifier: Apache-2.0
"""Every file format keeps to the contract of formats."""

from __future__ import annotations

import pytest

from volley.formats import FORMATS, format_of
from volley.formats.base import FileFormat
from volley.plan.file_scans import READ_RULES
from volley.testing.formats import FileFormatContract


def test_what_capture_lets_pass_has_a_format_and_the_other_way_round() -> None:
    assert FORMATS.keys() == READ_RULES.keys()
    assert all(format_of(name).name == name for name in FORMATS)


class TestParquet(FileFormatContract):
    @pytest.fixture
    def file_format(self) -> FileFormat:
        return format_of("parquet")
