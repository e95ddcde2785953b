# SPDX-License-Identifier: Apache-2.0
"""Arrow batches, whoever has them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def slices(batch: pa.RecordBatch, limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in slices of about `limit_bytes` at most, a row at least. Nothing is copied."""
    count = -(-batch.nbytes // limit_bytes) or 1
    rows = -(-batch.num_rows // count) or 1
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
