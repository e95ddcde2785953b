# SPDX-License-Identifier: Apache-2.0
"""Directories of links are kept for the next scan of the same files, and never for other files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from volley.lower.symlink_tables import LinkDirectories
from volley.plan.nodes import DataFile


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    made = []
    for number in range(4):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(b"data")
        made.append(DataFile(str(path), 4, 0, ()))
    return made


def linked_to(directory: str) -> list[str]:
    return [str(link.readlink()) for link in sorted(Path(directory).rglob("*.parquet"))]


@pytest.fixture
def directories() -> Iterator[LinkDirectories]:
    with closing(LinkDirectories(max_kept_links=4)) as made:
        yield made


def test_the_same_files_have_one_directory(directories: LinkDirectories, files: list[DataFile]) -> None:
    with directories.link(files[:2]) as first, directories.link(files[:2]) as second:
        assert first == second
        assert linked_to(first) == [file.path for file in files[:2]]
    with directories.link(files[:2]) as again, directories.link(files[1:3]) as other:
        assert again == first
        assert linked_to(other) == [file.path for file in files[1:3]]


def test_partitions_have_folders(directories: LinkDirectories, files: list[DataFile]) -> None:
    days = [DataFile(file.path, 4, 0, (number % 2,)) for number, file in enumerate(files)]
    with directories.link(days) as directory:
        assert linked_to(f"{directory}__volley_part=0") == [files[0].path, files[2].path]
        assert linked_to(f"{directory}__volley_part=1") == [files[1].path, files[3].path]


def test_a_file_of_the_same_size_that_was_written_anew_has_another_directory(
    directories: LinkDirectories, files: list[DataFile]
) -> None:
    with directories.link(files[:1]) as before:
        pass
    os.utime(files[0].path, ns=(1, 1))
    with directories.link(files[:1]) as after:
        assert before != after


def test_old_directories_go_first_and_used_ones_stay(files: list[DataFile]) -> None:
    with closing(LinkDirectories(max_kept_links=2)) as directories:
        _check_order(directories, files)


def _check_order(directories: LinkDirectories, files: list[DataFile]) -> None:
    with directories.link(files[:2]) as used:
        with directories.link(files[2:3]) as old:
            pass
        assert not Path(old).exists()
        assert len(linked_to(used)) == 2
    with directories.link(files[:2]) as again:
        assert again == used


def test_a_file_that_is_missing_is_an_error(directories: LinkDirectories, files: list[DataFile]) -> None:
    Path(files[3].path).unlink()
    with pytest.raises(OSError, match="No such file"), directories.link(files):
        pass


def test_nothing_is_left_after_the_end(files: list[DataFile]) -> None:
    directories = LinkDirectories()
    with directories.link(files) as directory:
        pass
    directories.close()
    assert not Path(directory).parent.exists()
    assert Path(files[0].path).exists()
