# SPDX-License-Identifier: Apache-2.0
"""Avro files, block by block, decoded by DataFusion.

DataFusion's reader of Avro files is fast, but does not divide files, and trusts them: it may never end if a block has
more rows than it says. So it is given files of Volley's own, in memory, whose blocks are rows of two columns:

    rows                      mark       An array begins with the number of its items and ends with a zero, so that a
    3, row, row, row, 0       (random)   block of a file becomes one without a look at its rows. The mark is read where
    2, row, row, 0            (random)   it should be only if the rows before it took exactly the bytes of their block.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from datafusion import SessionConfig, SessionContext

from volley.batches import batch_by_position
from volley.errors import DataError
from volley.formats.avro_files import Block, Header, encode_long, read_blocks, read_header
from volley.formats.avro_types import (
    AvroType,
    DecodedForm,
    array_form,
    decoded_form,
    fixed_form,
    parse_schema,
    record_form,
)
from volley.formats.avro_values import check_numbers, find_column
from volley.formats.base import ReadOptions, ReadRequest
from volley.formats.file_source import Source, open_source
from volley.formats.old_times import CORRECTED, Calendar, holds_old_times
from volley.plan.nodes import DataFile
from volley.plan.read_rules import AVRO_REBASE

_CHUNK_BYTES = 8 * 2**20
_MARK_BYTES = 16


class Avro:
    """See `StreamedFormat`."""

    name = "avro"

    def can_split(self, file: DataFile, options: ReadOptions) -> bool:
        return True

    def unreadable(self, file: DataFile) -> str | None:
        return None

    def read(self, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        path = request.file.path
        try:
            with open_source(request.file) as opened:
                yield from _read(opened, request)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read as Avro: {error}") from error
        except DataError as error:
            raise DataError(f"{path}: {error.message}") from error


def _read(opened: Source, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    size_bytes = request.file.size_bytes
    start, end = request.spark_range or (
        size_bytes * request.part // request.parts,
        size_bytes * (request.part + 1) // request.parts,
    )
    header = read_header(opened)
    rows = parse_schema(header.metadata.get("avro.schema", b"").decode("utf-8", "replace"))
    if rows.kind != "record" or rows.is_empty:
        raise DataError("an Avro file has no records with columns.")
    wanted = {column.name.lower() for column in request.columns}
    columns = decoded_form(rows, [name.lower() in wanted for name in rows.names])
    mark = fixed_form("mark", _MARK_BYTES)
    form = record_form("block", [("rows", array_form(columns)), ("mark", mark)])
    refuses_old = _refuses_old_times(header, dict(request.options))
    # DataFusion does not wait on a thread of its own.
    with ThreadPoolExecutor(1, "volley-avro") as decoder:
        for blocks in _chunks(read_blocks(opened, header, start, end)):
            opened.confirm()
            found = decoder.submit(_decode, blocks, form).result()
            yield _batch(found, rows, request, refuses_old)


def _batch(found: pa.StructArray, rows: AvroType, request: ReadRequest, refuses_old: bool) -> pa.RecordBatch:
    check_numbers(found, rows)
    arrays = [find_column(found, rows, column.name, column.type) for column in request.columns]
    if refuses_old and any(map(holds_old_times, arrays)):
        raise DataError("dates or times may be of another calendar.")
    return batch_by_position(arrays, len(found))


def _refuses_old_times(header: Header, options: dict[str, str]) -> bool:
    tags = {key.encode(): value for key, value in header.metadata.items()}
    # A read option counts before the setting.
    mode = options.get("datetimerebasemode", options.get(AVRO_REBASE, CORRECTED))
    return Calendar.of(tags).is_doubtful(mode)


def _chunks(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    """The blocks, some at a time."""
    held: list[Block] = []
    held_bytes = 0
    for block in blocks:
        # Each row has a byte at least.
        if block.count > len(block.data):
            raise DataError(f"an Avro file has a block of {block.count} rows in {len(block.data)} bytes.")
        held.append(block)
        held_bytes += len(block.data)
        if held_bytes >= _CHUNK_BYTES:
            yield held
            held, held_bytes = [], 0
    if held:
        yield held


def _decode(blocks: Sequence[Block], form: DecodedForm) -> pa.StructArray:
    """The rows of the blocks."""
    mark = os.urandom(_MARK_BYTES)
    data = b"".join(
        piece for block in blocks for piece in (encode_long(block.count), block.data, encode_long(0), mark)
    )
    # More rows than there are: the decoder then tries to read whatever it has left over, and fails. It ends well only
    # when a batch is full and nothing is left.
    rows = encode_long(len(blocks) + len(data))
    try:
        with _file_of((_header(form, mark), rows, encode_long(len(data)), data, mark)) as path:
            # Not one for all files: it may know a file by its name.
            config = SessionConfig().with_batch_size(len(blocks)).with_target_partitions(1)
            frame = SessionContext(config).read_avro(path, pa.schema(form.arrow), file_extension="")
            batches = frame.collect()
    except Exception as error:  # DataFusion has no type of its own for them
        raise DataError(f"an Avro file cannot be decoded: {error}") from error
    if len(batches) != 1 or batches[0].column(1).to_pylist() != [mark] * len(blocks):
        raise DataError("the rows of an Avro file do not end where their block does.")
    found = batches[0].column(0)
    if not np.array_equal(np.diff(found.offsets), [block.count for block in blocks]):
        raise DataError("a block of an Avro file has another number of rows than it says.")
    return found.flatten()


@contextmanager
def _file_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """The path of a file with this content, in memory where the system has such files."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="volley-avro-") as named:
            named.writelines(pieces)
            named.flush()
            yield named.name
        return
    descriptor = os.memfd_create("volley-avro", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(pieces)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _header(form: DecodedForm, mark: bytes) -> bytes:
    metadata = {b"avro.schema": json.dumps(form.schema).encode(), b"avro.codec": b"null"}
    texts = [text for pair in metadata.items() for text in pair]
    entries = b"".join(encode_long(len(text)) + text for text in texts)
    return b"Obj\x01" + encode_long(len(metadata)) + entries + encode_long(0) + mark
