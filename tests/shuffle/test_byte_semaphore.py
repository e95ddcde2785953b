# SPDX-License-Identifier: Apache-2.0
"""Bytes under way are bounded, in order, and given back also by those who stop waiting."""

from __future__ import annotations

import asyncio

from volley.byte_semaphore import ByteSemaphore
from volley.cancellation import CancellationToken


def test_the_limit_holds_and_turns_come_in_order() -> None:
    async def story() -> list[str]:
        gate, passed = ByteSemaphore(10), []

        async def enter(name: str, size_bytes: int) -> None:
            await gate.enter(size_bytes)
            passed.append(name)

        await enter("first", 6)
        waiting = [asyncio.create_task(enter(name, size)) for name, size in (("big", 8), ("small", 1))]
        await asyncio.sleep(0)
        # The small one would fit, but it came later: otherwise a big one might wait for ever.
        assert passed == ["first"]
        assert gate.held_bytes == 6
        gate.leave(6)
        await asyncio.gather(*waiting)
        assert gate.held_bytes == 9
        return passed

    assert asyncio.run(story()) == ["first", "big", "small"]


def test_what_is_larger_than_the_limit_passes_alone() -> None:
    async def story() -> None:
        gate = ByteSemaphore(10)
        await asyncio.wait_for(gate.enter(1000), 10)
        waiting = asyncio.create_task(gate.enter(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.leave(1000)
        await asyncio.wait_for(waiting, 10)

    asyncio.run(story())


def test_a_turn_that_is_cancelled_leaves_its_room_to_the_next() -> None:
    async def story() -> None:
        gate = ByteSemaphore(10)
        await gate.enter(10)
        given_up, next_in_line = (asyncio.create_task(gate.enter(10)) for _ in range(2))
        await asyncio.sleep(0)
        gate.leave(10)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await asyncio.wait_for(next_in_line, 10)
        assert gate.held_bytes == 10

    asyncio.run(story())


def test_a_token_fires_once_and_late_callers_at_once() -> None:
    token, calls = CancellationToken(), []
    token.on_fire(lambda: calls.append("early"))
    token.cancel("first")
    token.cancel("second")
    token.finish()
    token.on_fire(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    assert token.cancelled
    assert "first" in str(token.error())
