"""The files of a scan as units: what a captured Spark scan reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from volley.plan.expressions import Scalar
from volley.plan.nodes import DataFile, FileScan
from volley.splits.source import Estimate, Unit


class FileSource:
    """A `SplitSource` of one unit a file, in the order of the scan."""

    def __init__(self, scan: FileScan) -> None:
        self._files = scan.files

    def units(self) -> Iterator[Unit]:
        for file in self._files:
            yield Unit(encode(file), file.size_bytes)

    def estimate(self) -> Estimate:
        return Estimate(len(self._files), sum(file.size_bytes for file in self._files), final=True)

    def close(self) -> None:
        """Nothing is held open."""


class FileReader:
    """A `SplitReader` that gives the scan over just these files."""

    def __init__(self, scan: FileScan) -> None:
        self._scan = scan

    def read(self, units: Sequence[bytes]) -> FileScan:
        return replace(self._scan, files=tuple(decode(unit) for unit in units))


def encode(file: DataFile) -> bytes:
    values = [_encode_scalar(value) for value in file.partition]
    return json.dumps([file.path, file.size_bytes, file.modified_ms, values]).encode()


def decode(payload: bytes) -> DataFile:
    path, size_bytes, modified_ms, values = json.loads(payload)
    return DataFile(path, size_bytes, modified_ms, tuple(_decode_scalar(value) for value in values))


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
