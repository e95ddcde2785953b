# SPDX-License-Identifier: Apache-2.0
"""Reading ahead of whoever uses what is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Value = TypeVar("Value")


def ahead(pool: ThreadPoolExecutor, works: Iterable[Callable[[], Value]], count: int) -> Iterator[Value]:
    """What the works give, in their order, while up to `count` of them run or wait to be taken."""
    remaining = iter(works)
    running: deque[Future[Value]] = deque(pool.submit(work) for work in islice(remaining, count))
    while running:
        value = running.popleft().result()
        running.extend(pool.submit(work) for work in islice(remaining, 1))
        yield value
