# SPDX-License-Identifier: Apache-2.0
"""Bounds on what waits in memory."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteSemaphore:
    """Lets work through while fewer than `limit_bytes` are under way; one event loop only.

    An item larger than the whole limit passes alone, so nothing can wait for ever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    async def enter(self, size_bytes: int) -> None:
        """Wait for room, first come first served."""
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
        """Give the room back."""
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
