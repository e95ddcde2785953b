# SPDX-License-Identifier: Apache-2.0
"""Frames on a Unix socket: one byte of kind, eight of length, a body.

The first frame of a connection says what the connection is for:

    HELLO                      ->  WELCOME                               who are you?
    LEASE query                ->  PING, PING, ...                       the query lives as long as the connection
    RESERVE attempt            ->  ANSWER; then RUN task                 an attempt
                                   <- WANT, SCHEMA, BATCH ..., END       its requests, its rows, its outcome
                                   -> GIVE                               the answer to a WANT
    READ block                 ->  SCHEMA, BATCH ..., END                a block of a worker's store
    PUSH push, SCHEMA, BATCH ..., END  ->  ANSWER                        rows for a worker's store

A request that cannot be answered is answered with REFUSED.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

import pyarrow as pa

_HEADER = struct.Struct("<BQ")
_BUFFER_BYTES = 2**20


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    LEASE = 3
    PING = 4
    RESERVE = 5
    RUN = 6
    WANT = 7
    GIVE = 8
    READ = 9
    PUSH = 10
    SCHEMA = 11
    BATCH = 12
    END = 13
    ANSWER = 14
    REFUSED = 15


Frame = tuple[Kind, bytes]


class Channel:
    """A connection on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: str) -> Channel:
        return cls(*await asyncio.open_unix_connection(path, limit=_BUFFER_BYTES))

    async def send(self, kind: Kind, body: bytes | pa.Buffer = b"") -> None:
        """Send a frame, and wait while the other side is behind. Raises OSError if the connection broke."""
        self._writer.write(_HEADER.pack(kind, len(body)))
        if len(body):
            self._writer.write(memoryview(body))
        await self._writer.drain()

    async def receive(self) -> Frame | None:
        """The next frame; None when the connection has ended."""
        try:
            kind, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            return Kind(kind), await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def hang_up(self) -> None:
        """Send no more, and wait until the other side has cleaned up and hung up, too."""
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()
            while await self._reader.read(_BUFFER_BYTES):
                pass

    def close(self) -> None:
        self._writer.close()


class BlockingChannel:
    """A connection of a thread that may wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", _BUFFER_BYTES)

    def send(self, kind: Kind, body: bytes | pa.Buffer = b"") -> None:
        self._socket.sendall(_HEADER.pack(kind, len(body)))
        # The other side may have hung up after a frame without a body: it has all that it needs.
        if len(body):
            self._socket.sendall(memoryview(body))

    def receive(self) -> Frame:
        """The next frame. Raises OSError if the connection has ended."""
        kind, size = _HEADER.unpack(self._read(_HEADER.size))
        return Kind(kind), self._read(size)

    def _read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        if len(data) != size:
            raise ConnectionResetError("the other side has closed the connection")
        return data


@contextmanager
def connect(path: str, timeout_seconds: float) -> Iterator[BlockingChannel]:
    """A blocking connection. Raises OSError if nobody listens, or if a step takes longer than the timeout."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(path)
        yield BlockingChannel(connection)


def read_schema(body: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(body))


def read_batch(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(body), schema)
