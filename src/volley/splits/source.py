# SPDX-License-Identifier: Apache-2.0
"""The contract of a source that is read in two steps: discover the splits, then read them.

    coordinator                              worker
    SplitSource.splits() ---- bytes ---->     SplitReader.read(split, columns, filters) ---> batches

A scan has one `SplitSource`, in the coordinator, and a `SplitReader` in every task that reads it. Between them travel
splits: bytes that only these two understand, with a few hints for scheduling. Each split is read by exactly one task,
and again by every retry of that task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from volley.plan.expressions import Expression


@dataclass(frozen=True)
class Split:
    """A unit of work. Only the source and its reader interpret `payload`; the hints may be missing or wrong.

    A worker first gets queued splits that name its host in `hosts`. Otherwise the split with the largest `size_bytes`
    goes first.
    """

    payload: bytes
    size_bytes: int | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """How much there is to read, as far as is known. `final`: these numbers will not change."""

    splits: int
    size_bytes: int
    final: bool


class SplitSource(Protocol):
    """Discovers the splits of one scan, once, in the coordinator."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers return. Known before discovery starts."""

    def splits(self) -> Iterator[Split] | AsyncIterator[Split]:
        """Yield every split once, in any order, as it is found. This may take long and need not end.

        Called once, on a thread of its own; an async iterator runs on an event loop of that thread. Back-pressure: the
        next split is requested only while few are queued. An exception fails the query at once, as its cause.
        """

    def estimate(self) -> Estimate:
        """What is known so far. May be called at any time from any thread, even before `splits`."""

    def close(self) -> None:
        """No more splits are needed. Called once, also after an error.

        It may be called from another thread while `splits` blocks, and should then unblock it. The query continues
        either way, but a thread that never returns stays until the process ends.
        """


class SplitReader(Protocol):
    """Turns splits into rows. Must be thread-safe: several threads call it at once, each with its own split."""

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split. Must be deterministic: a retry reads the split again.

        The batches have exactly these `columns`, in this order. Rows for which one of `filters` is not true may be
        omitted, but need not be: the plan filters again. Batches are requested only as memory allows, so a split may
        have more rows than fit into memory.
        """
