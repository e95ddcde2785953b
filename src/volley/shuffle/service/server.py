# SPDX-License-Identifier: Apache-2.0
"""The Flight endpoint of a shuffle server: actions for control and pushes, `do_get` for blocks."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from volley.errors import QueryError
from volley.ids import AttemptId, QueryId
from volley.rpc.codec import decode, encode
from volley.rpc.control import Ack, AskHealth, Drain, Refused
from volley.rpc.server import Rows, Server
from volley.rpc.shuffle_messages import (
    AskCheckpoints,
    CommitAttempt,
    DropCheckpoint,
    FindStage,
    Granted,
    KeepAlive,
    KeepStage,
    PullBlock,
    PushChunks,
    Replicate,
    ReserveBytes,
)
from volley.shuffle.base import BlockRequest
from volley.shuffle.frames import SCHEMA
from volley.shuffle.service.replication import Replicator
from volley.shuffle.service.server_state import ShuffleServerState

_LENGTH = struct.Struct("<I")


def push_body(message: PushChunks, data: list[pa.Buffer]) -> bytes:
    """Encode a push: the length of the message, the message, and the bytes of its chunks."""
    header = encode(message)
    return b"".join((_LENGTH.pack(len(header)), header, *data))


class ShuffleServer(Server):
    """Answers calls once `serve` was called."""

    role = "shuffle server"

    def serve(self, server_state: ShuffleServerState, replicator: Replicator) -> None:
        self._server_state = server_state
        self._replicator = replicator
        self.open()

    def answer(self, action: str, body: pa.Buffer) -> Any:
        if action in ("replicate", "pull"):
            return _replicate(self._replicator, action, body)
        return _answer(self._server_state, action, body)

    def stream(self, ticket: bytes) -> Rows:
        return SCHEMA, self._server_state.frames(decode(ticket, BlockRequest))

    def on_refused(self, refusal: Refused) -> None:
        self._server_state.counts.add("refusals")


def _answer(server_state: ShuffleServerState, action: str, body: pa.Buffer) -> Any:
    if action == "push":
        return _push(server_state, body)
    message = decode(body.to_pybytes())
    match action, message:
        case "keep", KeepAlive():
            return server_state.keep_alive(message)
        case "reserve", ReserveBytes(attempt, size_bytes):
            return Granted(server_state.reserve(attempt, size_bytes))
        case "commit", CommitAttempt():
            server_state.commit(message)
        case "abort", AttemptId():
            server_state.abort(message)
        case "release", QueryId():
            server_state.release(message)
        case "keep-stage", KeepStage():
            server_state.keep_stage(message)
        case "find-stage", FindStage():
            return server_state.find_stage(message)
        case "checkpoints", AskCheckpoints():
            return server_state.checkpoints()
        case "drop-checkpoint", DropCheckpoint(checkpoint):
            server_state.drop_checkpoint(checkpoint)
        case "drain", Drain():
            server_state.drain()
        case "health", AskHealth():
            return server_state.health()
        case _:
            raise QueryError(f"a shuffle server has no action {action!r} with {type(message).__name__}.")
    return Ack()


def _replicate(replicator: Replicator, action: str, body: pa.Buffer) -> Ack:
    match action, decode(body.to_pybytes()):
        case "replicate", Replicate() as message:
            replicator.replicate(message)
        case "pull", PullBlock() as message:
            replicator.pull(message)
        case _, message:
            raise QueryError(f"a shuffle server has no action {action!r} with {type(message).__name__}.")
    return Ack()


def _push(server_state: ShuffleServerState, body: pa.Buffer) -> Ack:
    if body.size < _LENGTH.size:
        raise QueryError("the message is not a push.")
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    if start > body.size:
        raise QueryError("the message is not a push.")
    message = decode(body.slice(_LENGTH.size, length).to_pybytes(), PushChunks)
    server_state.push(message, body.slice(start))
    return Ack()
