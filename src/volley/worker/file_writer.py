# SPDX-License-Identifier: Apache-2.0
"""Writes rows into the files and partition folders that Spark would write. `volley.formats` encodes the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from volley.batches import make_batch
from volley.errors import DataError
from volley.formats import writer_of
from volley.plan.nodes import WRITTEN, WriteFiles
from volley.plan.types import to_arrow
from volley.run_ends import find_run_ends

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# The characters that Hive, and so Spark, escapes in folder names.
_ESCAPED = frozenset({*map(chr, range(1, 0x20)), *"\"#%'*/:=?\\\x7f{[]^"})


@dataclass(frozen=True)
class Written:
    """A finished file. `partition` is the path of its folder below the table, empty for the table itself."""

    file: str
    partition: str
    rows: int
    size_bytes: int


def file_schema(node: WriteFiles) -> pa.Schema:
    return pa.schema([pa.field(c.name, to_arrow(c.type), c.nullable) for c in node.columns])


def folder(names: Sequence[str], values: Sequence[str | None]) -> str:
    """The path of a partition as Spark writes it: `day=2024-01-01/name=a%2Fb`."""
    return "/".join(
        f"{_escape(name)}={_escape(value) if value else _NULL_FOLDER}"
        for name, value in zip(names, values, strict=True)
    )


def _escape(text: str) -> str:
    if "\0" in text:
        raise DataError("a partition value has the character 0, which is in no path.")
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


class FileWriter:
    """Writes one stream of rows, folder after folder, or file after file if rows have the numbers of their files.

    Use it from one thread at a time.

    `directory` belongs to the attempt. Files are named `<stream>-<number>-<number in its folder>` plus the suffix of
    their format; rows with the numbers of their files have these instead of the stream. `keep` is given each file when
    it is finished, and may put it elsewhere.
    """

    def __init__(
        self,
        node: WriteFiles,
        directory: Path,
        stream: int,
        keep: Callable[[Written], Written] = lambda written: written,
    ) -> None:
        self._node = node
        self._keep = keep
        self._directory = directory
        self._stream = stream
        self._schema = file_schema(node)
        self._suffix = writer_of(node.format).suffix
        self._open: _OpenFile | None = None
        self._made = 0
        self._made_in: Counter[tuple[int, str]] = Counter()
        self._written: list[Written] = []

    def write(self, batch: pa.RecordBatch) -> None:
        width = len(self._schema)
        rows = make_batch(batch.columns[:width], self._schema, batch.num_rows)
        names = self._node.partition_names
        texts = batch.columns[width : width + len(names)]
        numbers = batch.columns[width + len(names) :]
        start = 0
        for end in find_run_ends((*numbers, *texts), batch.num_rows):
            place = folder(names, [text[start].as_py() for text in texts])
            number = numbers[0][start].as_py() if numbers else self._stream
            self._write(place, number, rows.slice(start, end - start))
            start = end

    def close(self) -> list[Written]:
        """Finish the last file and return all files."""
        self._finish()
        return self._written

    def abort(self) -> None:
        if self._open is not None:
            self._open.abandon()

    def _write(self, place: str, number: int, rows: pa.RecordBatch) -> None:
        limit = self._node.rows_a_file
        while rows.num_rows:
            if self._open is not None and (
                (self._open.partition, self._open.number) != (place, number) or self._open.rows == limit
            ):
                self._finish()
            if self._open is None:
                # Count per folder for the whole stream: values that sort apart may map to the same folder.
                name = f"{number:05}-{self._made:07}-{self._made_in[number, place]:03}{self._suffix}"
                self._open = _OpenFile(self._directory / name, place, number, self._schema, self._node)
                self._made += 1
                self._made_in[number, place] += 1
            now = rows if limit is None else rows.slice(0, limit - self._open.rows)
            self._open.add(now)
            rows = rows.slice(now.num_rows)

    def _finish(self) -> None:
        if self._open is not None:
            self._written.append(self._keep(self._open.close()))
            self._open = None


class _OpenFile:
    def __init__(self, path: Path, partition: str, number: int, schema: pa.Schema, node: WriteFiles) -> None:
        self.partition = partition
        self.number = number
        self.rows = 0
        self._path = path
        self._writer = writer_of(node.format).open_writer(path, schema, node)

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._writer.write(batch)

    def close(self) -> Written:
        self._writer.close()
        return Written(str(self._path), self.partition, self.rows, self._path.stat().st_size)

    def abandon(self) -> None:
        self._writer.abandon()


def manifest(written: Sequence[Written], positions: pa.Schema) -> pa.RecordBatch:
    """One row per file, with the columns of `WRITTEN` under the names of `positions`."""
    columns = [
        pa.array([getattr(item, column.name) for item in written], field.type)
        for column, field in zip(WRITTEN, positions, strict=True)
    ]
    return make_batch(columns, positions, len(written))
