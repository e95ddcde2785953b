"""The files of a captured scan as units: large files cut into ranges, small ones put together.

unit   a.parquet [0, 64m)          a unit is a list of pieces; a row group belongs to the piece
unit   a.parquet [64m, 128m)       in which it begins, so that no footer must be read to cut a file
unit   b.parquet, c.parquet, d.parquet
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from volley.plan.expressions import Scalar
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import to_arrow
from volley.splits.source import Estimate, Unit
from volley.stages.scans import UNITS_A_TASK, split_bytes

_FILES_A_UNIT = 64


@dataclass(frozen=True)
class Piece:
    """The row groups of a file that begin at one of the bytes from `start` up to `end`."""

    file: DataFile
    start: int
    end: int

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end >= self.file.size_bytes


class FileSource:
    """A `SplitSource` over the files of a scan that is shared by `tasks`."""

    def __init__(self, scan: FileScan, tasks: int) -> None:
        self._scan = scan
        self._split_bytes = split_bytes(scan, tasks)
        # Small files are put together only as far as every task still gets several units.
        self._together = max(1, min(_FILES_A_UNIT, len(scan.files) // (tasks * UNITS_A_TASK)))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, to_arrow(column.type)) for column in self._scan.output])

    def units(self) -> Iterator[Unit]:
        waiting: list[Piece] = []
        for file in self._scan.files:
            if file.size_bytes > self._split_bytes:
                for piece in _ranges(file, self._split_bytes):
                    yield _unit([piece])
                continue
            held = sum(piece.file.size_bytes for piece in waiting)
            if waiting and (held + file.size_bytes > self._split_bytes or len(waiting) >= self._together):
                yield _unit(waiting)
                waiting = []
            waiting.append(Piece(file, 0, file.size_bytes))
        if waiting:
            yield _unit(waiting)

    def estimate(self) -> Estimate:
        size_bytes = sum(file.size_bytes for file in self._scan.files)
        return Estimate(sum(1 for _ in self.units()), size_bytes, final=True)

    def close(self) -> None:
        """Nothing is held open."""


def encode(pieces: list[Piece]) -> bytes:
    return json.dumps([_encode_piece(piece) for piece in pieces]).encode()


def decode(payload: bytes) -> list[Piece]:
    return [
        Piece(
            DataFile(path, size_bytes, modified_ms, tuple(_decode_scalar(value) for value in values)),
            start,
            end,
        )
        for path, size_bytes, modified_ms, values, start, end in json.loads(payload)
    ]


def _ranges(file: DataFile, size_bytes: int) -> Iterator[Piece]:
    count = -(-file.size_bytes // size_bytes)
    for number in range(count):
        yield Piece(file, file.size_bytes * number // count, file.size_bytes * (number + 1) // count)


def _unit(pieces: list[Piece]) -> Unit:
    return Unit(encode(pieces), sum(piece.end - piece.start for piece in pieces))


def _encode_piece(piece: Piece) -> list[Any]:
    file = piece.file
    values = [_encode_scalar(value) for value in file.partition]
    return [file.path, file.size_bytes, file.modified_ms, values, piece.start, piece.end]


def _encode_scalar(value: Scalar) -> Any:
    match value:
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case _:
            return value


def _decode_scalar(value: Any) -> Scalar:
    match value:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"decimal": text}:
            return Decimal(text)
        case _:
            return value  # type: ignore[no-any-return]
