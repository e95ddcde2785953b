# SPDX-License-Identifier: Apache-2.0
"""How Spark's tasks push rows to the workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from volley.errors import CrossingError
from volley.ids import AttemptId
from volley.transport import Push, Pushed, decode, encode
from volley_unix.store import STALL_SECONDS
from volley_unix.wire import Kind, connect


@dataclass(frozen=True)
class SocketIngest:
    """An `IngestEndpoint`: the workers at `paths`, which take turns."""

    paths: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]

    def push(
        self, attempt: AttemptId, partitions: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> Pushed:
        path = self.paths[attempt.task.task % len(self.paths)]
        with connect(path, STALL_SECONDS) as channel:
            channel.send(Kind.PUSH, encode(Push("", attempt, partitions, self.settings)))
            channel.send(Kind.SCHEMA, schema.serialize())
            for batch in batches:
                channel.send(Kind.BATCH, batch.serialize())
            channel.send(Kind.END)
            kind, body = channel.receive()
        if kind is not Kind.ANSWER:
            raise CrossingError(f"worker {path} refuses the rows of {attempt}: {body.decode()}")
        return decode(body, Pushed)
