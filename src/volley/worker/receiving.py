# SPDX-License-Identifier: Apache-2.0
"""Rows that somebody else has computed, on their way into the store of a worker."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from volley.rpc.control import Push
from volley.shuffle.base import Block, ShuffleStore


def receive(push: Push, batches: Iterable[pa.RecordBatch], store: ShuffleStore) -> tuple[Block, ...]:
    """Commit all that comes, batch by batch: whoever sends waits while the store is behind.

    Who sends may go in the middle, which can look like the end; but then there is nobody to tell what was committed,
    and nobody reads it.
    """
    sink = store.sink(push.attempt, push.partitions)
    # Each begins elsewhere, so that the rows of many small outputs are spread as well.
    target = push.attempt.task.task % push.partitions
    try:
        for batch in batches:
            sink.write(target, batch)
            target = (target + 1) % push.partitions
        return sink.commit()
    except BaseException:
        sink.abort()
        raise
