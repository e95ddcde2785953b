# SPDX-License-Identifier: Apache-2.0
"""The event loop on which native queries run.

DataFusion's streams are awaitable, and only an awaited stream can be stopped in the middle of an operator. All waiting
for native work therefore happens on one event loop, in a thread that ends with the interpreter. Blocking calls run on
thread pools, one per kind of `Work`, so that writers waiting for room do not delay planning or reading.
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

from volley.process.runtime import Phase, Shared

Value = TypeVar("Value")


class Work(Enum):
    """Kinds of blocking work. Each has its own thread pool, named after it."""

    PLAN = "plan"
    """Planning, which is CPU-bound."""
    SINK = "sink"
    """Writing exchanged data: may wait a minute for room."""
    STORE = "store"
    """Telling a shared store that a query begins or ends."""
    FETCH = "fetch"
    """Reading exchanged data in the driver, such as the results of subqueries."""
    FILES = "files"
    """Files between the driver and its workers: waits for their pieces."""


# Threads start on demand. An attempt has one sink, and a worker rarely runs more attempts than this.
_THREADS = {Work.PLAN: 4, Work.SINK: 256, Work.STORE: 16, Work.FETCH: 16, Work.FILES: 256}


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with thread pools for blocking work."""

    def __init__(self) -> None:
        super().__init__()
        self.pools = {
            work: ThreadPoolExecutor(threads, thread_name_prefix=f"volley-{work.value}")
            for work, threads in _THREADS.items()
        }


class LoopThread:
    """An event loop in its own thread. `close` cancels its tasks and ends the thread."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="volley-loop", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Run `work` on the loop. May be called from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call on the loop without waiting for it. Does nothing after `close`."""
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

    A thread cannot be interrupted, and what it uses must outlive it. A cancelled call therefore still waits for the
    function to return. `on_cancel` may make it return early; it is called on another thread.
    """
    work = _start(where, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        pending: list[asyncio.Future[Any]] = [work]
        if on_cancel is not None and not work.done():
            pending.append(_start(where, on_cancel))
        while any(not future.done() for future in pending):
            # Keep waiting even if cancelled again.
            with suppress(asyncio.CancelledError):
                await asyncio.wait(pending)
        for future in pending:
            future.exception()  # retrieve the exception, or asyncio warns that it was never retrieved
        raise


def _start(where: Work | Executor, function: Callable[..., Value], *arguments: Any) -> asyncio.Future[Value]:
    loop = asyncio.get_running_loop()
    if isinstance(where, Executor):
        return loop.run_in_executor(where, partial(function, *arguments))
    # Other event loops have a single default pool.
    pool = loop.pools[where] if isinstance(loop, _Loop) else None
    return loop.run_in_executor(pool, partial(function, *arguments))


async def _cancel_all() -> None:
    """Cancel all tasks. A stream that is polled while the interpreter shuts down can abort the process."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_loops: Shared[None, LoopThread] = Shared(Phase.QUERIES, close=LoopThread.close)


def shared_loop() -> LoopThread:
    """The loop of this process, started by its first query. A forked child gets its own."""
    return _loops.get(None, LoopThread)
