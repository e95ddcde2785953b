# SPDX-License-Identifier: Apache-2.0
"""The files of a captured scan as splits: large files are cut into parts, small ones are combined.

split   a.parquet, first of two      A split is one part of a large file, or several whole small files.
split   a.parquet, second of two     The reader determines the row groups of a part, so that no footer
split   b.parquet, c.parquet         has to be read to cut a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from volley.formats import can_split
from volley.plan.nodes import DataFile, DeleteFile, FileScan
from volley.plan.types import to_arrow
from volley.splits.source import Estimate, Split
from volley.splits.tagged_json import from_plain, to_plain
from volley.stages.limits import PlannerLimits
from volley.stages.scans import split_bytes


@dataclass(frozen=True)
class Piece:
    """Part `part` of `parts` of the rows of `files`. Together the parts contain every row once."""

    files: tuple[DataFile, ...]
    part: int = 0
    parts: int = 1


class FileSource:
    """A `SplitSource` over the files of a scan that is shared by `tasks`."""

    def __init__(self, scan: FileScan, tasks: int, limits: PlannerLimits) -> None:
        self._scan = scan
        self._files_per_split = limits.files_per_split
        self._split_bytes = split_bytes(scan, tasks, limits)
        # Combine small files only as far as every task still gets some.
        total_bytes = sum(file.size_bytes for file in scan.files)
        self._together_bytes = min(self._split_bytes, -(-total_bytes // tasks))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in self._scan.output])

    def splits(self) -> Iterator[Split]:
        return map(_split, self._pieces())

    def estimate(self) -> Estimate:
        return self._estimate

    @cached_property
    def _estimate(self) -> Estimate:
        size_bytes = sum(file.size_bytes for file in self._scan.files)
        return Estimate(sum(1 for _ in self._pieces()), size_bytes, final=True)

    def _pieces(self) -> Iterator[Piece]:
        waiting: list[DataFile] = []
        held_bytes = 0
        for file in self._scan.files:
            if file.size_bytes > self._split_bytes and can_split(self._scan, file):
                parts = -(-file.size_bytes // self._split_bytes)
                yield from (Piece((file,), part, parts) for part in range(parts))
                continue
            too_much = held_bytes + file.size_bytes > self._together_bytes
            if waiting and (too_much or len(waiting) >= self._files_per_split):
                yield Piece(tuple(waiting))
                waiting, held_bytes = [], 0
            waiting.append(file)
            held_bytes += file.size_bytes
        if waiting:
            yield Piece(tuple(waiting))

    def close(self) -> None:
        """Does nothing: no resource is open."""


def encode(piece: Piece) -> bytes:
    return json.dumps([piece.part, piece.parts, [_encode_file(file) for file in piece.files]]).encode()


def decode(payload: bytes) -> Piece:
    part, parts, files = json.loads(payload)
    return Piece(tuple(_decode_file(*file) for file in files), part, parts)


def _split(piece: Piece) -> Split:
    size_bytes = sum(file.size_bytes for file in piece.files)
    # Computed from both ends, so that the sizes of the parts add up to that of the file.
    begin, end = (size_bytes * number // piece.parts for number in (piece.part, piece.part + 1))
    return Split(encode(piece), end - begin)


def _encode_file(file: DataFile) -> list[Any]:
    values = [to_plain(value) for value in file.partition]
    deletes = [astuple(delete) for delete in file.deletes]
    return [file.path, file.size_bytes, file.modified_ms, values, file.store, deletes]


def _decode_file(
    path: str, size_bytes: int, modified_ms: int, values: list[Any], store: str, deletes: list[list[Any]]
) -> DataFile:
    partition = tuple(from_plain(value) for value in values)
    found = tuple(DeleteFile(*delete) for delete in deletes)
    return DataFile(path, size_bytes, modified_ms, partition, store, found)
