# SPDX-License-Identifier: Apache-2.0
"""What Volley uses of newer Pythons, for Python 3.10. This module goes when 3.10 does."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import Runner, Timeout, timeout
    from contextlib import chdir
    from enum import StrEnum

    add_note = BaseException.add_note
else:
    import asyncio
    import os
    from collections.abc import Coroutine, Iterator
    from contextlib import contextmanager
    from enum import Enum
    from pathlib import Path
    from types import TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")

    class StrEnum(str, Enum):
        __str__ = str.__str__

    class Timeout:
        """An `asyncio.Timeout`. Its errors are `asyncio.TimeoutError`, which newer Pythons call TimeoutError."""

        def __init__(self, when: float | None) -> None:
            self._when = when
            self._timer: asyncio.TimerHandle | None = None
            self._task: asyncio.Task[Any] | None = None
            self._has_expired = False

        def reschedule(self, when: float | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if when is None else asyncio.get_running_loop().call_at(when, self._expire)

        def _expire(self) -> None:
            self._has_expired = True
            if self._task is not None:
                self._task.cancel()

        async def __aenter__(self) -> Timeout:
            self._task = asyncio.current_task()
            self.reschedule(self._when)
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self.reschedule(None)
            if self._has_expired and isinstance(error, asyncio.CancelledError):
                raise asyncio.TimeoutError from error

    def timeout(delay: float | None) -> Timeout:
        return Timeout(None if delay is None else asyncio.get_running_loop().time() + delay)

    class Runner:
        """An `asyncio.Runner` for threads other than the main one."""

        def __init__(self) -> None:
            self._loop = asyncio.new_event_loop()

        def run(self, work: Coroutine[Any, Any, T]) -> T:
            return self._loop.run_until_complete(work)

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *error: object) -> None:
            try:
                self._loop.run_until_complete(self._stop())
            finally:
                self._loop.close()

        async def _stop(self) -> None:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()

    @contextmanager
    def chdir(directory: str | os.PathLike[str]) -> Iterator[None]:
        before = Path.cwd()
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)

    def add_note(error: BaseException, note: str) -> None:
        """Tracebacks of Python 3.10 do not show notes; `volley` does."""
        error.__dict__.setdefault("__notes__", []).append(note)


__all__ = ["Runner", "StrEnum", "Timeout", "add_note", "chdir", "timeout"]
