# SPDX-License-Identifier: Apache-2.0
"""Reads native rows in Spark's Python workers: blocks, from the processes that hold them, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from volley.batches import make_batch
from volley.errors import CrossingError, VolleyError
from volley.rpc.codec import decode, encode
from volley.security import Credentials
from volley.shuffle.base import Block
from volley.shuffle.factory import ShuffleConfig, reading_store


@dataclass(frozen=True)
class Access:
    """How another process reads blocks: what it presents to their holders, and the store that they are in."""

    credentials: Credentials
    store: ShuffleConfig


def reader(
    access: Access, shares: Sequence[Sequence[Block]], places: Sequence[int], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over numbers of `shares`: their rows, of each column the one at its place, under `schema`."""
    # Spark pickles this; blocks are sent in our own form, which both sides check.
    encoded = [encode(tuple(blocks)) for blocks in shares]

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from rows(access, decode(encoded[number]), places, schema)

    return read


def rows(
    access: Access, blocks: Sequence[Block], places: Sequence[int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """CrossingError if they cannot be read; the driver recognizes it in Spark's error message."""
    try:
        with reading_store(access.store, access.credentials.read()) as store:
            for batch in store.read_many(blocks):
                columns = [
                    batch.column(place).cast(field.type) for place, field in zip(places, schema, strict=True)
                ]
                yield make_batch(columns, schema, batch.num_rows)
    except (VolleyError, OSError, pa.ArrowException) as error:
        raise CrossingError(f"native rows cannot be read: {error}") from error
