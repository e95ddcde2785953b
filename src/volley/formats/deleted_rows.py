# SPDX-License-Identifier: Apache-2.0
"""The rows of a data file that a table still has: Iceberg names deleted ones by their positions.

position deletes   a Parquet file with columns file_path and pos, about one data file or many
deletion vector    a bitmap of the positions in one data file, among others in a Puffin file
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from volley.errors import DataError
from volley.formats.file_source import open_source
from volley.formats.roaring import Positions, read_bitmap
from volley.lru_cache import LruCache
from volley.plan.nodes import DataFile, DeleteFile

# Writers put the deletes of a partition into one file, which is read for each of its data files.
_KEPT_FILES = 16
_KEPT_BYTES = 16 * 2**20
_positions: LruCache[tuple[str, str, int], pa.Table] = LruCache(_KEPT_FILES)

_MAGIC = b"\xd1\xd3\x39\x64"


def kept_rows(file: DataFile, rows: int) -> pa.BooleanArray | None:
    """For each row of the file whether it is kept; None if all are. DataError if that cannot be read."""
    if not file.deletes:
        return None
    kept = np.ones(rows, bool)
    for delete in file.deletes:
        try:
            positions = _read_vector(delete) if delete.length_bytes else _read_positions(delete)
        except (OSError, pa.ArrowException, struct.error, ValueError, KeyError) as error:
            raise DataError(f"the deleted rows in {delete.path} cannot be read: {error}") from error
        if len(positions) and not 0 <= positions.min() <= positions.max() < rows:
            raise DataError(f"{delete.path} deletes rows that {file.path} does not have.")
        kept[positions] = False
    return pa.array(kept)


def _read_positions(delete: DeleteFile) -> Positions:
    key = (delete.store, delete.path, delete.size_bytes)
    if (table := _positions.get(key)) is None:
        with open_source(DataFile(delete.path, delete.size_bytes, 0, store=delete.store)) as opened:
            table = pq.read_table(opened.source, columns=["file_path", "pos"])
            opened.confirm()
        if table.nbytes <= _KEPT_BYTES:
            _positions.put(key, table)
    ours = table.filter(pc.equal(table["file_path"], delete.target))["pos"]
    found: npt.NDArray[np.int64] = ours.to_numpy()
    return found


def _read_vector(delete: DeleteFile) -> Positions:
    with open_source(DataFile(delete.path, delete.size_bytes, 0, store=delete.store)) as opened:
        blob = opened.read(delete.offset, delete.length_bytes)
        opened.confirm()
    (length,) = struct.unpack_from(">I", blob)
    body = blob[4 : 4 + length]
    (checksum,) = struct.unpack_from(">I", blob, 4 + length)
    if body[:4] != _MAGIC or zlib.crc32(body) != checksum:
        raise DataError(f"the deletion vector at {delete.offset} of {delete.path} is damaged.")
    return read_bitmap(body[4:])
