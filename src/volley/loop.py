# SPDX-License-Identifier: Apache-2.0
"""The thread on which native queries wait.

DataFusion's streams are awaitable, and only an awaited stream can be stopped in the middle of an operator: a
thread that blocks in one cannot. So everything that waits for native work waits on one event loop, in a thread
that this module owns and ends with the interpreter. Planning, which computes instead of waiting, runs on a small
pool beside it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")


class LoopThread:
    """An event loop in a thread of its own. `close` cancels what still runs and ends the thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._planners = ThreadPoolExecutor(max_workers=4, thread_name_prefix="volley-plan")
        self._loop.set_default_executor(self._planners)
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
            self._planners.shutdown()
            self._loop.close()


async def _cancel_all() -> None:
    """A stream that is still polled while the interpreter ends can abort the process: end them all first."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_lock = threading.Lock()
_shared: LoopThread | None = None


def shared_loop() -> LoopThread:
    """The loop of this process, started by the first query."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
            atexit.register(_shared.close)
        return _shared


def _forget_after_fork() -> None:
    # Threads do not survive a fork; a child that queries gets a loop of its own.
    global _shared, _lock
    _lock = threading.Lock()
    _shared = None


os.register_at_fork(after_in_child=_forget_after_fork)
