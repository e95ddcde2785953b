# SPDX-License-Identifier: Apache-2.0
"""A semaphore that counts bytes, to bound what is buffered in memory."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteSemaphore:
    """Admits work as long as at most `limit_bytes` are in use. For a single event loop.

    An item larger than the limit is admitted alone, so nothing waits forever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    async def enter(self, size_bytes: int) -> None:
        """Wait for room, in order of arrival."""
        if not self._waiting and self._fits(size_bytes):
            self._held_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int) -> None:
        """Release the room."""
        self._held_bytes -= size_bytes
        while self._waiting:
            next_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(next_bytes):
                    return
                self._held_bytes += next_bytes
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= self._limit_bytes
