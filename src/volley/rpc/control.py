# SPDX-License-Identifier: Apache-2.0
"""What a driver and a worker daemon say to each other beside tasks. Data travels elsewhere.

    hello     Hello            ->  Welcome              plain JSON, see handshake.py
    reserve   Reserve          ->  Ack
    run       TaskSpec         ->  Ack
    watch     Watch            ->  News                 at once when there is some, else after `wait_seconds`
    feed      SplitBatch            ->  Ack               the answer to a SplitRequest that came as news
    cancel    AttemptId        ->  Ack               when the attempt holds nothing any more
    perform   TaskSpec         ->  Ack               for a caller that waits, without a driver
    await     Await            ->  how it ended, or Ack(False): not yet
    pull      Pull             ->  SplitBatch, or Ack(False): not yet; a worker with such a task asks the driver
    ended     how it ended     ->  Ack               told to the driver by who waits for such a task
    do_put    Push, batches    ->  Pushed               rows of somebody else into the worker's store
    meet      RegisterWorker             ->  Ack               told to the driver by who does that inside an executor
    release   QueryId          ->  Ack
    bye       Bye              ->  Ack               the driver ends: forget it
    drain     Drain            ->  Ack
    health    AskHealth        ->  Health

Whatever is refused is answered by `Refused`. The control channel is `watch`, asked again and again: each question has a
deadline of its own, so a worker that is stopped, cut off or gone shows itself within that time, and no thread of the
driver can wait for ever; each question also renews the driver's lease, so a worker forgets a driver that has gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.fields import Count, Name, Positive, Seconds
from volley.ids import AttemptId
from volley.rpc.blocks import Block
from volley.rpc.messages import SplitRequest, TaskDone, TaskFailure


@dataclass(frozen=True)
class Reserve:
    driver: Name
    attempt: AttemptId


@dataclass(frozen=True)
class Watch:
    """`after` is the number of the last outcome that arrived; those up to it may be forgotten."""

    driver: Name
    after: Count
    wait_seconds: Seconds


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. Numbers rise by one for each driver, so that none is lost with a lost answer."""

    number: Count
    end: TaskDone | TaskFailure


@dataclass(frozen=True)
class News:
    """`wants` are told once: an answer that does not arrive is a lost worker, whose attempts begin elsewhere."""

    outcomes: tuple[Outcome, ...]
    draining: bool
    wants: tuple[SplitRequest, ...] = ()


@dataclass(frozen=True)
class Await:
    """How did this attempt end? Asked by whoever let it be performed, at least every few seconds."""

    attempt: AttemptId
    wait_seconds: Seconds


@dataclass(frozen=True)
class Pull:
    """What does this attempt get? Asked of the driver by the worker at `holder`, again until there is an answer."""

    want: SplitRequest
    holder: Name
    wait_seconds: Seconds


@dataclass(frozen=True)
class Push:
    """Batches follow: the output of an attempt that no worker runs, to be dealt evenly into `partitions`.

    They are kept until the query is released, or `driver` forgotten; without a name until the query is released.
    """

    driver: Name
    attempt: AttemptId
    partitions: Positive


@dataclass(frozen=True)
class Pushed:
    """They are committed. `holder` is the worker that has them, or has put them into the store beside it."""

    attempt: AttemptId
    blocks: tuple[Block, ...]
    holder: Name


@dataclass(frozen=True)
class RegisterWorker:
    """The worker at `holder` is about to hold something for this driver."""

    holder: Name


@dataclass(frozen=True)
class Bye:
    driver: Name


@dataclass(frozen=True)
class Drain:
    """Finish what runs, take nothing new."""


@dataclass(frozen=True)
class AskHealth:
    """How is it?"""


@dataclass(frozen=True)
class Health:
    """A worker as it is now. `status` is "serving" or "draining"; bytes are of exchanged data."""

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


@dataclass(frozen=True)
class Ack:
    granted: bool = True


@dataclass(frozen=True)
class Refused:
    """`code` is that of the error on the other side."""

    code: Name
    message: str


UNKNOWN_DRIVER = "UNKNOWN_DRIVER"
NOT_RESERVED = "NOT_RESERVED"
STOPPING = "STOPPING"
INTERNAL = "INTERNAL"
NOT_OFFERED = "NOT_OFFERED"
RESULT_TICKET = b"result "
"""Before the encoded attempt whose rows are wanted; any other ticket is for the shuffle store."""
