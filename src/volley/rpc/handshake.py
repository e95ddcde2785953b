# SPDX-License-Identifier: Apache-2.0
"""The handshake of two processes: they continue only if protocol, engine version and hash function are the same.

Its messages are plain JSON outside the versioned codec, because every version must understand them, older and newer. A
field may be added; none may ever change its meaning.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
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
    """The name of a process, and what must be equal on both sides."""

    name: str
    protocol_version: int
    engine_version: str
    hash_fingerprint: str

    @classmethod
    def of_this_process(cls, name: str) -> Identity:
        return cls(name, PROTOCOL_VERSION, datafusion.__version__, hash_fingerprint())

    def require_same(self, other: Identity) -> None:
        """Raises HandshakeRefused, naming both sides, if they are incompatible."""
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
    """Sent by a driver to a worker. `queries` are those still running; the worker frees all others of this driver."""

    identity: Identity
    driver: str
    queries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Welcome:
    """The worker's reply. `refusal` says why the two are incompatible; it is empty if they are not.

    `runs_python`: its owner lets it run Python functions.
    """

    identity: Identity
    cores: int
    slots: int
    refusal: str = ""
    runs_python: bool = False


def to_json(words: Hello | Welcome) -> bytes:
    return json.dumps(asdict(words)).encode()


def read_hello(payload: bytes) -> Hello:
    """Decode a Hello. Raises QueryError for anything else."""
    try:
        words = json.loads(payload)
        queries = tuple(_require_string(query) for query in words.get("queries", ()))
        return Hello(_read_identity(words), _require_string(words["driver"]), queries)
    except _DECODE_ERRORS as error:
        raise QueryError(f"the handshake is not valid: {type(error).__name__}.") from error


def read_welcome(payload: bytes) -> Welcome | None:
    """Decode a Welcome. None for anything else."""
    try:
        words = json.loads(payload)
        cores, slots = int(words["cores"]), int(words["slots"])
        refusal = _require_string(words.get("refusal", ""))
        return Welcome(_read_identity(words), cores, slots, refusal, words.get("runs_python") is True)
    except _DECODE_ERRORS:
        return None


# JSON that nests too deeply raises RecursionError.
_DECODE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _read_identity(words: dict[str, Any]) -> Identity:
    values = words["identity"]
    return Identity(**{field.name: values[field.name] for field in fields(Identity)})


def _require_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a string")
    return value


def process_name(role: str) -> str:
    return f"{role} {os.getpid()} on {socket.gethostname()}"


@cache
def hash_fingerprint() -> str:
    """A digest of where DataFusion's hash puts the rows of a fixed batch. If two engines differ, joins lose rows."""
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
    # On a thread of its own: that of the caller may run an event loop, as in a notebook.
    with ThreadPoolExecutor(1, thread_name_prefix="volley-fingerprint") as thread:
        for chosen in (*((key,) for key in keys), keys):
            rows = thread.submit(asyncio.run, _place_rows(batch, chosen)).result()
            digest.update(json.dumps(rows).encode())
    return digest.hexdigest()[:16]


async def _place_rows(
    batch: pa.RecordBatch, keys: tuple[Attribute, ...], partitions: int = 7
) -> list[list[int]]:
    context = hashing_context(partitions)
    frame = context.create_dataframe([[batch]])
    plan = partitioned_plan(frame, context, keys, partitions)
    if plan is None:
        raise HandshakeRefused("DataFusion did not partition the batch for the hash fingerprint.")

    async def rows(partition: int) -> list[int]:
        found: list[int] = []
        async for piece in context.execute(plan, partition):
            found += piece.to_pyarrow().column(0).fill_null(-1000).to_pylist()
        return sorted(found)

    return list(await asyncio.gather(*(rows(partition) for partition in range(partitions))))
