# SPDX-License-Identifier: Apache-2.0
"""Writes the output of one attempt to an object store: one data object, then its commit marker."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa

from volley.errors import ShuffleRefused
from volley.ids import AttemptId
from volley.shuffle.base import Block
from volley.shuffle.budget import MemoryBudget
from volley.shuffle.chunked_sink import ChunkedSink
from volley.shuffle.chunks import Chunk, seal
from volley.shuffle.conditional_put import AlreadyThere
from volley.shuffle.disk import is_full
from volley.shuffle.object_checkpoints import made_by
from volley.shuffle.objects import Folder

COMMITTED = "committed"


class ObjectSink(ChunkedSink):
    """A `ShuffleSink` that appends chunks to one object as they are sealed."""

    def __init__(
        self,
        attempt: AttemptId,
        partitions: int,
        *,
        folder: Folder,
        budget: MemoryBudget,
        codec: str,
        check: Callable[[], None],
    ) -> None:
        super().__init__(attempt, partitions, budget)
        self._folder = folder
        self._path = folder.path(*folders_of(attempt))
        self._name = secrets.token_hex(8)
        self._codec = codec
        self._check = check
        self._stream: pa.NativeFile | None = None
        self._written_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._written_bytes + self._builder.waiting_bytes

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        with self._lock, self._report_errors():
            self._check_open()
            for number, ready in self._builder.add(partition, batch):
                self._append(number, ready)

    def commit(self) -> tuple[Block, ...]:
        with self._lock, self._report_errors():
            self._check_open()
            for number, ready in self._builder.flush():
                self._append(number, ready)
            if self._stream is not None:
                self._stream.close()
            # The driver may have ended the query and removed its data.
            self._check()
            packed = [self._index(number) for number in range(len(self._chunks))]
            try:
                # The name at its start distinguishes this marker from that of a rival that wrote the same rows.
                marker = b"".join((self._name.encode(), *packed))
                self._folder.write_once(f"{self._path}/{COMMITTED}", marker)
            except AlreadyThere:
                raise ShuffleRefused(
                    "SHUFFLE_COMMIT_LOST", f"{self._attempt} has been committed by another process."
                ) from None
            self._is_committed = True
            return tuple(self._blocks(packed))

    def abort(self) -> None:
        with self._lock:
            if self._is_committed or self._closed.is_set():
                return
            self._free()
            if self._stream is not None:
                # Best effort: releasing the query removes the rest.
                with suppress(OSError):
                    self._folder.files.delete_file(f"{self._path}/{self._name}.data")
            self._written_bytes = 0

    def stop(self) -> None:
        """Close the sink because its query is over. Later writes are refused; committed data stays."""
        with self._lock:
            self._free()

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ShuffleRefused(
                "SHUFFLE_FULL" if is_full(error) else "SHUFFLE_UNAVAILABLE",
                f"{self._attempt} cannot be written to {self._folder.uri}: {error}.",
            ) from error

    def _append(self, partition: int, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            # The query may have ended; writing would leave a folder without a lease.
            self._check()
            path = f"{self._path}/{self._name}.data"
            self._folder.make_parent(path)
            self._stream = self._folder.files.open_output_stream(path, compression=None)
        sealed = seal(batch, self._codec)
        self._stream.write(sealed.data)
        chunk = Chunk(0, self._written_bytes, sealed.data.size, batch.num_rows, sealed.checksum)
        self._written_bytes += sealed.data.size
        self._chunks[partition].append(chunk)

    def _blocks(self, packed: Sequence[bytes]) -> Iterator[Block]:
        start = len(self._name)
        for number, index in enumerate(packed):
            handle = f"{self._name}:{start}:{len(index)}"
            yield self._block(number, self._folder.uri, index, handle, outlives_worker=True)
            start += len(index)

    def _free(self) -> None:
        self._closed.set()
        self._builder.clear()
        if self._stream is not None:
            with suppress(OSError, pa.ArrowException):
                self._stream.close()


def folders_of(attempt: AttemptId) -> tuple[str, ...]:
    """The path of an attempt below the root, folder by folder."""
    stage = attempt.task.stage
    return (
        made_by(stage.query),
        f"s{stage.stage}e{stage.epoch}",
        f"t{attempt.task.task}",
        f"a{attempt.attempt}",
    )


# The folders, which some file systems list, and in them the data, the marker and its temporary file.
_OBJECT = re.compile(r"s\d+e\d+(/t\d+(/a\d+(/([0-9a-f]{16}\.data|committed(\.[0-9a-f]+)?))?)?)?", re.ASCII)


def is_object(path: str) -> bool:
    """Whether a sink creates this path below the folder of a query."""
    return _OBJECT.fullmatch(path) is not None
