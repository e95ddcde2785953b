# SPDX-License-Identifier: Apache-2.0
"""The first words of two processes: they go on only when both speak the same protocol and hash alike.

These words are plain JSON outside of the versioned codec, because they must be understood by every version, older and
newer. A field may be added; none may ever change its meaning.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

import datafusion
import pyarrow as pa

from volley.errors import HandshakeRefused, QueryError
from volley.lower.expressions import column_name
from volley.lower.partition import partitioned_plan
from volley.lower.sessions import hashing_context
from volley.plan.expressions import Attribute
from volley.plan.types import DOUBLE, LONG, STRING, DecimalType
from volley.rpc.messages import PROTOCOL_VERSION


@dataclass(frozen=True)
class Identity:
    """Who speaks, and what must be equal on both sides."""

    name: str
    protocol_version: int
    engine_version: str
    hash_fingerprint: str

    @classmethod
    def of_this_process(cls, name: str) -> Identity:
        return cls(name, PROTOCOL_VERSION, datafusion.__version__, hash_fingerprint())

    def require_same(self, other: Identity) -> None:
        """HandshakeRefused, with both sides by name, unless they can work together."""
        checks = [
            ("protocol", self.protocol_version, other.protocol_version),
            ("datafusion", self.engine_version, other.engine_version),
            ("hash fingerprint", self.hash_fingerprint, other.hash_fingerprint),
        ]
        for what, ours, theirs in checks:
            if ours != theirs:
                raise HandshakeRefused(
                    f"{self.name} has {what} {ours}, {other.name} has {what} {theirs}.",
                    hint="Install the same versions of Volley and datafusion on both sides.",
                )


@dataclass(frozen=True)
class Hello:
    """A driver to a worker. `queries` are those it still runs: all else that it left there may go."""

    identity: Identity
    driver: str
    queries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Welcome:
    """The worker's answer. `refusal` says why the two cannot work together, and is empty when they can."""

    identity: Identity
    cores: int
    slots: int
    refusal: str = ""


def to_json(words: Hello | Welcome) -> bytes:
    return json.dumps(asdict(words)).encode()


def read_hello(payload: bytes) -> Hello:
    """QueryError for what is no hello."""
    try:
        words = json.loads(payload)
        queries = tuple(_text(query) for query in words.get("queries", ()))
        return Hello(_identity(words), _text(words["driver"]), queries)
    except _NOT_UNDERSTOOD as error:
        raise QueryError(f"that was no hello: {type(error).__name__}.") from error


def read_welcome(payload: bytes) -> Welcome | None:
    """None for what is no welcome."""
    try:
        words = json.loads(payload)
        cores, slots = int(words["cores"]), int(words["slots"])
        return Welcome(_identity(words), cores, slots, _text(words.get("refusal", "")))
    except _NOT_UNDERSTOOD:
        return None


# A text that nests too deeply is a RecursionError.
_NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _identity(words: dict[str, Any]) -> Identity:
    values = words["identity"]
    return Identity(**{field.name: values[field.name] for field in fields(Identity)})


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a text")
    return value


def process_name(role: str) -> str:
    return f"{role} {os.getpid()} on {socket.gethostname()}"


@cache
def hash_fingerprint() -> str:
    """Where DataFusion's hash puts the rows of a fixed batch. Two engines that differ here would lose rows of joins."""
    keys = (
        Attribute(1, "l", LONG, True),
        Attribute(2, "s", STRING, True),
        Attribute(3, "d", DOUBLE, True),
        Attribute(4, "n", DecimalType(20, 2), True),
    )
    numbers = [None, *range(-100, 100)]
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([None if n is None else f"key {n}" for n in numbers], pa.string()),
        pa.array([None if n is None else n / 8 for n in numbers], pa.float64()),
        pa.array(numbers, pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 2)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, [column_name(key.id) for key in keys])
    digest = hashlib.sha256()
    for chosen in (*((key,) for key in keys), keys):
        digest.update(json.dumps(asyncio.run(_placed(batch, chosen))).encode())
    return digest.hexdigest()[:16]


async def _placed(batch: pa.RecordBatch, keys: tuple[Attribute, ...], partitions: int = 7) -> list[list[int]]:
    context = hashing_context(partitions)
    frame = context.create_dataframe([[batch]])
    plan = partitioned_plan(frame, context, keys, partitions)
    if plan is None:
        raise HandshakeRefused("DataFusion did not partition the batch of the fingerprint.")

    async def rows(partition: int) -> list[int]:
        found: list[int] = []
        async for piece in context.execute(plan, partition):
            found += piece.to_pyarrow().column(0).fill_null(-1000).to_pylist()
        return sorted(found)

    return list(await asyncio.gather(*(rows(partition) for partition in range(partitions))))
