# SPDX-License-Identifier: Apache-2.0
"""Prefetching on a thread pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Value = TypeVar("Value")


def prefetch(pool: ThreadPoolExecutor, works: Iterable[Callable[[], Value]], count: int) -> Iterator[Value]:
    """Yield the results in order. Up to `count` of them are being computed or wait to be taken."""
    remaining = iter(works)
    running: deque[Future[Value]] = deque(pool.submit(work) for work in islice(remaining, count))
    while running:
        value = running.popleft().result()
        running.extend(pool.submit(work) for work in islice(remaining, 1))
        yield value
