# SPDX-License-Identifier: Apache-2.0
"""Checks batches that came from another process before anything reads them.

Arrow trusts its buffers: offsets beyond the data make native code read, or write, where it must not. Exchanged chunks
have checksums; rows that are pushed, and those of results, have none.
"""

from __future__ import annotations

import pyarrow as pa

from volley.errors import QueryError


def validate_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself, all of whose offsets, lengths and texts are valid. QueryError if they are not."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise QueryError(f"a peer sent rows that are not valid Arrow data: {error}") from error
    return batch
