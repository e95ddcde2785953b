# SPDX-License-Identifier: Apache-2.0
"""The control messages between drivers and worker daemons. Rows travel in streams of their own.

    driver -> worker
    hello     Hello            ->  Welcome      plain JSON, see handshake.py
    reserve   Reserve          ->  Ack
    start     Start            ->  Ack          run an attempt; Ack(False): no slot is free
    run       TaskSpec         ->  Ack          the same for a reserved slot, of versions that do not know `start`
    watch     Watch            ->  News         at once if there is any, else after `wait_seconds`
    feed      SplitBatch       ->  Ack          the answer to a SplitRequest that came as news
    cancel    AttemptId        ->  Ack          once the attempt has released everything
    release   QueryId          ->  Ack          the query is over
    bye       Bye              ->  Ack          the driver stops: forget it
    drain     Drain            ->  Ack
    health    AskHealth        ->  Health

    Spark task -> sidecar worker
    perform   Start            ->  Ack          run an attempt for a caller that polls `await`; or its TaskSpec alone
    await     Await            ->  TaskDone or TaskFailure; Ack(False): still running
    do_put    Push, batches    ->  Pushed       rows computed elsewhere, into the worker's store

    daemon -> registry
    join      JoinRegistry     ->  Ack          repeated before its lease expires
    leave     LeaveRegistry    ->  Ack

    executor -> driver
    pull      Pull             ->  SplitBatch; Ack(False): none yet. Sent by a sidecar that runs a fed attempt
    ended     TaskDone or TaskFailure  ->  Ack  sent by the Spark task that waits for the attempt
    progress  Progress         ->  Ack          sent by a sidecar once a second while it runs an attempt
    register  RegisterWorker   ->  Ack          sent by a Spark task before it pushes rows into its sidecar

A refused request is answered with `Refused`. The control channel is repeated `watch` calls. Each has a deadline, so a
stopped, unreachable or dead worker is noticed within that time and no thread of the driver waits forever. Each call
also renews the driver's lease, so a worker forgets drivers that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from volley.field_types import Count, Matches, Name, PartitionCount, Seconds, Text, Wait
from volley.ids import AttemptId
from volley.python_versions import StrEnum
from volley.rpc.blocks import Block
from volley.rpc.messages import SplitRequest, TaskDone, TaskFailure, TaskSpec


@dataclass(frozen=True)
class Reserve:
    driver: Name
    attempt: AttemptId


@dataclass(frozen=True)
class Start:
    """Asks to run an attempt, in the slot that is reserved for it or else in any that is free.

    The plan of the task is sent beside it, see `rpc.start`.
    """

    driver: Name
    task: TaskSpec
    is_reserved: bool = False


@dataclass(frozen=True)
class Watch:
    """`after` is the number of the last outcome that was received; the worker may forget those up to it."""

    driver: Name
    after: Count
    wait_seconds: Wait


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. Outcomes are numbered per driver, so that a lost reply loses none of them."""

    number: Count
    end: TaskDone | TaskFailure


@dataclass(frozen=True)
class Progress:
    """What the scans of a running attempt have read so far."""

    attempt: AttemptId
    rows: Count
    size_bytes: Count


@dataclass(frozen=True)
class News:
    """`wants` are sent once: if the reply is lost, the worker counts as lost and its attempts run elsewhere."""

    outcomes: tuple[Outcome, ...]
    draining: bool
    wants: tuple[SplitRequest, ...] = ()
    progress: tuple[Progress, ...] = ()


@dataclass(frozen=True)
class Await:
    """Asks how an attempt ended. The caller that started it must ask every few seconds to keep it alive."""

    attempt: AttemptId
    wait_seconds: Wait


@dataclass(frozen=True)
class Pull:
    """A split request that the worker at `holder` sends to the driver, and repeats until there is an answer."""

    want: SplitRequest
    holder: Name
    wait_seconds: Wait


@dataclass(frozen=True)
class Push:
    """Batches follow: the output of an attempt that ran elsewhere, to be spread evenly over `partitions`.

    The blocks are kept until the query is released or, if `driver` is named, until that driver's lease ends. `settings`
    are those of a `TaskSpec`.
    """

    driver: Name
    attempt: AttemptId
    partitions: PartitionCount
    settings: tuple[tuple[Name, Text], ...] = ()


@dataclass(frozen=True)
class Pushed:
    """The rows are committed. `holder` is the worker that holds them or wrote them to its shared store."""

    attempt: AttemptId
    blocks: tuple[Block, ...]
    holder: Name


@dataclass(frozen=True)
class RegisterWorker:
    """The worker at `holder` is about to hold blocks for this driver."""

    holder: Name


class Role(StrEnum):
    """What a daemon that registers is."""

    WORKER = "worker"
    SHUFFLE_SERVER = "shuffle server"


Address = Annotated[str, Matches(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}")]
"""A host and a port, on one line."""


@dataclass(frozen=True)
class JoinRegistry:
    """The daemon at `address` may be used until it has not repeated this for `lease_seconds`."""

    role: Role
    address: Address
    lease_seconds: Seconds


@dataclass(frozen=True)
class LeaveRegistry:
    role: Role
    address: Address


@dataclass(frozen=True)
class Bye:
    driver: Name


@dataclass(frozen=True)
class Drain:
    """Finish running attempts, accept no new ones."""


@dataclass(frozen=True)
class AskHealth:
    """Asks for the current state of a server."""


@dataclass(frozen=True)
class Health:
    """The current state of a worker. `status` is "serving" or "draining"; `held_bytes` counts exchanged data.

    `jvm` are the versions of Spark and Java with which it evaluates expressions, or why it does not.
    `version` is that of its Volley.
    """

    name: Name
    status: Name
    running: Count
    reserved: Count
    slots: Count
    drivers: Count
    held_bytes: Count
    shuffle_limit_bytes: Count
    memory_bytes: Count
    uptime_seconds: Seconds
    jvm: Text = ""
    version: Name = ""


@dataclass(frozen=True)
class Ack:
    granted: bool = True


@dataclass(frozen=True)
class Refused:
    """`code` is the error code of the other side."""

    code: Name
    message: str


UNKNOWN_DRIVER = "UNKNOWN_DRIVER"
NOT_RESERVED = "NOT_RESERVED"
STOPPING = "STOPPING"
INTERNAL = "INTERNAL"
NOT_OFFERED = "NOT_OFFERED"
RESULT_TICKET = b"result "
"""Prefix of a ticket for the rows of an attempt, which follows encoded. Other tickets go to the shuffle store."""
