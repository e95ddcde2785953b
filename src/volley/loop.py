# SPDX-License-Identifier: Apache-2.0
"""The thread on which native queries wait.

DataFusion's streams are awaitable, and only an awaited stream can be stopped in the middle of an operator: a
thread that blocks in one cannot. So everything that waits for native work waits on one event loop, in a thread
that this module owns and ends with the interpreter. What blocks runs on threads beside it, on a pool for each kind of
`Work`, so that writers who wait for room keep nobody from planning a task or from reading an answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from volley.runtime import Phase, Shared

Value = TypeVar("Value")


class Work(Enum):
    """Kinds of blocking work. Each has threads of its own, which are named after it."""

    PLAN = "plan"
    """Making plans: computes."""
    SINK = "sink"
    """Writing exchanged data: may wait a minute for room."""
    STORE = "store"
    """Telling a shared store that a query begins or ends."""
    FETCH = "fetch"
    """Reading exchanged data in the driver, such as the results of subqueries."""


# Threads start when they are needed. An attempt has one sink, and a worker rarely more attempts than this.
_THREADS = {Work.PLAN: 4, Work.SINK: 256, Work.STORE: 16, Work.FETCH: 16}


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with its threads for blocking work."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = {
            work: ThreadPoolExecutor(threads, thread_name_prefix=f"volley-{work.value}")
            for work, threads in _THREADS.items()
        }


class LoopThread:
    """An event loop in a thread of its own. `close` cancels what still runs and ends the thread."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="volley-loop", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Run `work` on the loop; called from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` on the loop soon, without waiting. After `close` nothing is called."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self.submit(_cancel_all()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            for pool in self._loop.pools.values():
                pool.shutdown()
            self._loop.close()


async def run_blocking(
    where: Work | Executor,
    function: Callable[..., Value],
    *arguments: Any,
    on_cancel: Callable[[], object] | None = None,
) -> Value:
    """Call `function` on a thread and wait for it.

    A thread cannot be stopped, and what it uses must outlive it: when this is cancelled, it ends after the function
    has. `on_cancel` may make the function return early; it is called on another thread.
    """
    work = _start(where, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        under_way: list[asyncio.Future[Any]] = [work]
        if on_cancel is not None and not work.done():
            under_way.append(_start(where, on_cancel))
        while any(not future.done() for future in under_way):
            # Cancelled once more, it still waits.
            with suppress(asyncio.CancelledError):
                await asyncio.wait(under_way)
        for future in under_way:
            future.exception()  # nobody wants to know
        raise


def _start(where: Work | Executor, function: Callable[..., Value], *arguments: Any) -> asyncio.Future[Value]:
    loop = asyncio.get_running_loop()
    if isinstance(where, Executor):
        return loop.run_in_executor(where, partial(function, *arguments))
    # A loop that is not ours has one pool for everything.
    pool = loop.pools[where] if isinstance(loop, _Loop) else None
    return loop.run_in_executor(pool, partial(function, *arguments))


async def _cancel_all() -> None:
    """A stream that is still polled while the interpreter ends can abort the process: end them all first."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_loops: Shared[None, LoopThread] = Shared(Phase.QUERIES, close=LoopThread.close)


def shared_loop() -> LoopThread:
    """The loop of this process, started by the first query. A forked child that queries gets one of its own."""
    return _loops.get(None, LoopThread)
