# SPDX-License-Identifier: Apache-2.0
"""The parts of a text file hold every line once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.text_files import read_natively
from volley.errors import DataError
from volley.formats.lines import WHITE_SPACE, TextForm, count_filled, read_blocks, without_blank_lines
from volley.formats.text import split_lines
from volley.plan.nodes import DataFile
from volley.plan.types import STRING

PIECES = st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"cccc\n", b"\xef\xbb\xbf"]), max_size=30)


@given(PIECES, st.integers(1, 8), st.sampled_from([1, 2, 5, 100]))
def test_parts_hold_every_line_once(pieces: list[bytes], parts: int, block_bytes: int) -> None:
    data = b"".join(pieces)
    with tempfile.NamedTemporaryFile() as opened:
        path = Path(opened.name)
        path.write_bytes(data)
        file = DataFile(str(path), len(data), 0)
        blocks = [
            block
            for part in range(parts)
            for block in read_blocks(file, part, parts, TextForm(), block_bytes=block_bytes)
        ]
    assert b"".join(blocks) == data.removeprefix(b"\xef\xbb\xbf")
    assert all(block.endswith(b"\n") for block in blocks[:-1])


@given(st.lists(st.sampled_from([b"a", b" ", b"\t", b"\n", b"\r\n", b" b\n", b"\xc2\xa0"]), max_size=20))
def test_lines_with_more_than_white_space_are_counted(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert count_filled(data) == sum(bool(line.strip(WHITE_SPACE)) for line in data.split(b"\n"))
    assert count_filled(without_blank_lines(data)) == count_filled(data)


@pytest.mark.parametrize("file_format", ["csv", "text"])
def test_marks_inside_of_a_file_are_text(tmp_path: Path, file_format: str) -> None:
    """Arrow drops a byte order mark at the start of a block, but Spark only at that of a file."""
    path = tmp_path / "file"
    path.write_bytes("a\n\ufeffb\n".encode())
    (batch,) = read_natively(path, file_format, {"value": STRING}, {})
    assert batch.column(0).to_pylist() == ["a", "\ufeffb"]
    with pytest.raises(DataError, match="byte order mark"):
        read_natively(path, file_format, {"value": STRING}, {}, part=1, parts=3)
    with pytest.raises(DataError, match="byte order mark"):
        split_lines("\ufeffb".encode())
    path.write_bytes("h\n\ufeffb\n".encode())
    with pytest.raises(DataError, match="byte order mark"):
        read_natively(path, "csv", {"value": STRING}, {"header": "true"})


def test_files_without_a_native_form(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"a\rb\n", b"a\n\r", b"a\0b"):
        path.write_bytes(data)
        with pytest.raises(DataError):
            list(read_blocks(DataFile(str(path), len(data), 0), 0, 1, TextForm()))
    with pytest.raises(DataError, match="changed"):
        list(read_blocks(DataFile(str(path), 1000, 0), 0, 1, TextForm()))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_blocks(DataFile(str(tmp_path / "none"), 0, 0), 0, 1, TextForm()))
    damaged = tmp_path / "file.gz"
    damaged.write_bytes(b"not compressed")
    with pytest.raises(DataError, match="cannot be read"):
        list(read_blocks(DataFile(str(damaged), damaged.stat().st_size, 0), 0, 1, TextForm()))
