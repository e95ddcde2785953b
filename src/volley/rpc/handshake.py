# SPDX-License-Identifier: Apache-2.0
"""The handshake of two processes: they continue only if protocol, engine version and hash function are the same.

Their versions of Volley may differ: within a protocol version, messages stay readable (`rpc.codec`).

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
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

import datafusion
import pyarrow as pa

from volley.errors import HandshakeRefused, QueryError
from volley.field_types import AtMost, Count, Key, Name, Positive, Text
from volley.lower.expressions import column_name
from volley.lower.partition import partitioned_plan
from volley.lower.sessions import hashing_context
from volley.plan.expressions import Attribute
from volley.plan.types import DOUBLE, LONG, STRING, DecimalType
from volley.rpc.codec import field_checks
from volley.rpc.messages import PROTOCOL_VERSION
from volley.version import __version__

_HINTS = {
    "protocol": f"Install versions of Volley that speak the same protocol; this one is {__version__}.",
    "datafusion": "Install the same version of datafusion on both sides.",
    "hash fingerprint": "Install the same build of datafusion on both sides.",
}


@dataclass(frozen=True)
class Identity:
    """The name of a process, what must be equal on both sides, and the version of Volley, which need not be."""

    name: Name
    protocol_version: Count
    engine_version: Name
    hash_fingerprint: Name
    version: Name = ""

    @classmethod
    def of_this_process(cls, name: str) -> Identity:
        return cls(name, PROTOCOL_VERSION, datafusion.__version__, hash_fingerprint(), __version__)

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
                    f"{self.name}{self._of_volley} has {what} {ours},"
                    f" {other.name}{other._of_volley} has {what} {theirs}.",
                    hint=_HINTS[what],
                )

    @property
    def _of_volley(self) -> str:
        return f" (Volley {self.version})" if self.version else ""


@dataclass(frozen=True)
class Hello:
    """Sent by a driver to a worker. `queries` are those still running; the worker frees all others of this driver.

    Without a `driver` it only asks who listens there.
    """

    identity: Identity
    driver: Name
    queries: Annotated[tuple[Key, ...], AtMost(10_000)] = ()


@dataclass(frozen=True)
class Welcome:
    """The worker's reply. `refusal` says why the two are incompatible; it is empty if they are not.

    `runs_python`: its owner lets it run Python functions. `instance` is a random id of the process: a worker that is
    known under two addresses has one, and one that is restarted at the same address gets another. `jvm` are the
    versions of Spark and Java with which it evaluates programs (`volley.jvm.java`); if it does not, `no_jvm` says why.
    `starts`: it understands `start`, which needs no reservation.
    """

    identity: Identity
    cores: Positive
    slots: Positive
    refusal: Text = ""
    runs_python: bool = False
    instance: Name = ""
    jvm: Name = ""
    no_jvm: Text = ""
    starts: bool = False


def to_json(words: Hello | Welcome) -> bytes:
    return json.dumps(asdict(words)).encode()


def read_hello(payload: bytes) -> Hello:
    """Decode a Hello. Raises QueryError for anything else."""
    try:
        return _read(Hello, json.loads(payload))
    except _DECODE_ERRORS as error:
        raise QueryError(f"the handshake is not valid: {type(error).__name__}.") from error


def read_welcome(payload: bytes) -> Welcome | None:
    """Decode a Welcome. None for anything else."""
    try:
        return _read(Welcome, json.loads(payload))
    except _DECODE_ERRORS:
        return None


# JSON that nests too deeply raises RecursionError.
_DECODE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

Words = TypeVar("Words", Hello, Welcome)


def _read(kind: type[Words], words: dict[str, Any]) -> Words:
    """Check every known field. Fields that are not known are of a newer version, and are left out."""
    values = {name: words[name] for name in _CHECKS[kind] if name in words}
    identity = {name: words["identity"][name] for name in _CHECKS[Identity] if name in words["identity"]}
    values["identity"] = _require_valid(Identity, identity)
    if "queries" in values:
        values["queries"] = tuple(values["queries"])
    found: Words = _require_valid(kind, values)
    return found


def _require_valid(kind: type[Any], values: dict[str, Any]) -> Any:
    for name, value in values.items():
        if not _CHECKS[kind][name](value):
            raise ValueError(f"{kind.__name__}.{name} cannot be {value!r:.60}")
    return kind(**values)


_CHECKS = {kind: field_checks(kind) for kind in (Identity, Hello, Welcome)}


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
