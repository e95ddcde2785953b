# SPDX-License-Identifier: Apache-2.0
"""Receives rows that were computed elsewhere into the store of a worker."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from volley.rpc.batch_validation import validate_batch
from volley.rpc.control import Push
from volley.shuffle.base import Block, ShuffleStore


def receive(push: Push, batches: Iterable[pa.RecordBatch], store: ShuffleStore) -> tuple[Block, ...]:
    """Write all batches and commit them. The sender waits while the store is behind.

    A sender that dies midway can look like the end of the stream. That is harmless: nobody receives the reply that
    names the blocks, so nobody reads them.
    """
    sink = store.sink(push.attempt, push.partitions)
    # Each attempt starts at another partition, so that many small outputs are spread evenly too.
    target = push.attempt.task.task % push.partitions
    try:
        for batch in batches:
            sink.write(target, validate_batch(batch))
            target = (target + 1) % push.partitions
        return sink.commit()
    except BaseException:
        sink.abort()
        raise
