"""The contract of a source that is read in two steps: find out what to read, then read it.

A `SplitSource` lives with the coordinator and is asked once a query. A `SplitReader` lives in every worker. Between
them travel units: bytes that only these two understand, with a few hints that everybody may use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Read = TypeVar("Read", covariant=True)


@dataclass(frozen=True)
class Unit:
    """A piece of work. `payload` is the source's own; the hints may be missing and may be wrong."""

    payload: bytes
    size_bytes: int | None = None
    rows: int | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """How much there is, as far as is known; `final` when discovery is over."""

    units: int
    size_bytes: int
    final: bool


class SplitSource(Protocol):
    """Finds units. Called by one thread at a time, by the coordinator alone."""

    def units(self) -> Iterator[Unit]:
        """The units, each once, in any order, as they are found. It may take long and may never end.

        An error that it raises fails the query with that cause.
        """

    def estimate(self) -> Estimate:
        """What is known so far; may be asked at any time, also before `units`."""

    def close(self) -> None:
        """No more units are wanted. Called once, also after an error and in the middle of discovery."""


class SplitReader(Protocol, Generic[Read]):
    """Turns units into what the native engine scans. It must give the same rows for the same units every time."""

    def read(self, units: Sequence[bytes]) -> Read:
        """What these units stand for; none at all is an empty relation, not an error."""
