# SPDX-License-Identifier: Apache-2.0
"""The contract of a source that is read in two steps: find out what to read, then read it.

    coordinator                              worker
    SplitSource.splits() ---- bytes ---->     SplitReader.read(split, columns, filters) ---> batches

A `SplitSource` lives with the coordinator and is asked once a query. A `SplitReader` lives in every task that reads.
Between them travel splits: bytes that only these two understand, with a few hints that everybody may use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from volley.plan.expressions import Expression


@dataclass(frozen=True)
class Split:
    """A piece of work. `payload` is the source's own; the hints may be missing and may be wrong.

    Of the splits that wait, those with more bytes are given out first, and those with one of their `hosts` in reach
    are given to a worker there.
    """

    payload: bytes
    size_bytes: int | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """How much there is, as far as is known; `final` when discovery is over."""

    splits: int
    size_bytes: int
    final: bool


class SplitSource(Protocol):
    """Finds splits. Called by the coordinator alone, and once a query."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers give; known before discovery begins."""

    def splits(self) -> Iterator[Split] | AsyncIterator[Split]:
        """The splits, each once, in any order, as they are found. It may take long and may never end.

        It runs on a thread of its own, an async iterator on an event loop of its own there, and is not asked for the
        next split while enough of them wait. An error that it raises fails the query at once, with that cause.
        """

    def estimate(self) -> Estimate:
        """What is known so far; may be asked at any time and from any thread, also before `splits`."""

    def close(self) -> None:
        """No more splits are wanted. Called once, also after an error.

        It may come from another thread while `splits` waits for something, and should make it stop waiting: the query
        goes on without it in any case, but a thread that waits for ever stays until the process ends.
        """


class SplitReader(Protocol):
    """Turns splits into rows. Called by several threads of a worker at once, each with a split of its own."""

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a split, the same every time it is asked: an attempt that failed is repeated.

        The batches have just these `columns`, in this order. Rows for which one of `filters` is not true may be left
        out, and need not be: the plan filters again. A batch is taken when there is room for it, so a split may have
        more rows than fit into memory.
        """
