# SPDX-License-Identifier: Apache-2.0
"""Writes ORC files with Arrow. Spark reads back what its own writer would have written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as arrow_orc

from volley.errors import DataError
from volley.formats.base import (
    MERGES_SCHEMA,
    FilePlan,
    NotWritable,
    WriteRequest,
    WriteRules,
    find_invalid_option,
)
from volley.formats.orc import GREGORIAN_DAY
from volley.plan.nodes import WriteFiles
from volley.plan.types import BINARY, BOOLEAN, DATE, FRACTIONAL, INTEGRAL, STRING, DecimalType

_CODEC = "spark.sql.orc.compression.codec"
_CODEC_OPTIONS = ("compression", "orc.compress")
# Arrow's name and the ending of the file for each of Spark's codecs.
_CODECS = {
    "none": ("uncompressed", ".orc"),
    "uncompressed": ("uncompressed", ".orc"),
    "snappy": ("snappy", ".snappy.orc"),
    "zlib": ("zlib", ".zlib.orc"),
    "zstd": ("zstd", ".zstd.orc"),
    "lz4": ("lz4", ".lz4.orc"),
}


class OrcWriter:
    """See `WritableFormat`."""

    name = "orc"
    suffix = ".orc"
    write_rules = WriteRules(
        settings={"spark.sql.orc.impl": "native", _CODEC: None},
        options=frozenset({*_CODEC_OPTIONS, MERGES_SCHEMA}),
        hadoop=frozenset({"orc.encrypt", "orc.mask"}),
    )

    def plan_write(self, request: WriteRequest) -> FilePlan | NotWritable:
        if problem := find_invalid_option(request):
            return problem
        for column in request.columns:
            simple = {BOOLEAN, STRING, BINARY, DATE, *INTEGRAL, *FRACTIONAL}
            if not (column.type in simple or isinstance(column.type, DecimalType)):
                return NotWritable(f"column {column.name}", str(column.type))
        if not request.columns:
            return NotWritable("columns", "0")
        name = next((request.options[key] for key in _CODEC_OPTIONS if key in request.options), None)
        codec = (name or request.settings[_CODEC]).lower()
        if codec not in _CODECS:
            return NotWritable("compression", codec)
        compression, suffix = _CODECS[codec]
        return FilePlan(suffix, (("compression", compression),), ())

    def open_writer(self, path: Path, schema: pa.Schema, node: WriteFiles) -> OrcFile:
        return OrcFile(path, schema, dict(node.options)["compression"])


class OrcFile:
    """A `FormatWriter`."""

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self._schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._writer = arrow_orc.ORCWriter(str(path), compression=compression)
        self._is_empty = True

    def write(self, batch: pa.RecordBatch) -> None:
        for column in batch.columns:
            if pa.types.is_date32(column.type):
                first = pc.min(column.cast(pa.int32())).as_py()
                if first is not None and first < GREGORIAN_DAY:
                    raise DataError("Spark would take a date for one of another calendar.")
        self._is_empty = False
        self._writer.write(pa.Table.from_batches([batch]).cast(self._schema))

    def close(self) -> None:
        if self._is_empty:
            # The schema comes with the first rows.
            self._writer.write(self._schema.empty_table())
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()
