# SPDX-License-Identifier: Apache-2.0
"""A worker looks at its own resident memory, and acts before the budget is exceeded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from volley.plan.nodes import Partitioning
from volley.process.allocator import little_memory, resident_bytes
from volley.shuffle.memory import MemoryStore
from volley.stages.graph import Output
from volley.testing.contracts import attempt_id, numbers, stage_task
from volley.worker.memory_guard import MemoryGuard
from volley.worker.slots import Slots


class Memory:
    """What a process has, and what it did about it. `freed_bytes` go back with each release."""

    def __init__(self, freed_bytes: int = 0) -> None:
        self.used_bytes = 0
        self.freed_bytes = freed_bytes
        self.done: list[str] = []

    def guard(self) -> MemoryGuard:
        return MemoryGuard(1000, lambda: self.used_bytes, self.release, lambda: self.done.append("drop"))

    def release(self) -> None:
        self.done.append("release")
        self.used_bytes -= self.freed_bytes


@pytest.mark.parametrize(
    ("used_bytes", "freed_bytes", "done", "is_short"),
    [
        (700, 0, [], False),
        (800, 0, ["release"], False),
        (950, 0, ["release"], True),
        (950, 200, ["release"], False),
        (1100, 0, ["drop", "release"], True),
    ],
)
def test_it_acts_step_by_step(used_bytes: int, freed_bytes: int, done: list[str], is_short: bool) -> None:
    memory = Memory(freed_bytes)
    guard = memory.guard()
    memory.used_bytes = used_bytes
    guard.check()
    assert (memory.done, guard.is_short, guard.peak_bytes) == (done, is_short, used_bytes)
    memory.used_bytes = 100
    guard.check()
    assert not guard.is_short


def test_a_worker_that_is_short_of_memory_runs_one_task_at_a_time() -> None:
    async def story() -> None:
        short = False
        slots = Slots("w", 4, 1, MemoryStore("w"), is_short=lambda: short)
        first, second, third = (attempt_id(number) for number in range(3))
        assert slots.reserve(first)
        assert slots.reserve(second)
        short = True
        assert not slots.reserve(third)
        for attempt in (first, second):
            assert await slots.start(
                stage_task(numbers(10), Output(Partitioning.SINGLE), attempt.task.task)
            ).done()
        # Nothing runs any more: whatever holds the memory, the query has to go on.
        assert slots.reserve(third)

    asyncio.run(story())


def test_the_resident_memory_is_what_the_system_says() -> None:
    before = resident_bytes()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert (48 << 20) < resident_bytes() - before < (128 << 20)
    assert len(block) == 64 << 20


def test_the_allocator_keeps_little_where_there_is_little() -> None:
    assert little_memory(64 << 30) == {}
    assert little_memory(1 << 30)["MIMALLOC_PURGE_DELAY"] == "100"
    assert little_memory(256 << 20)["MIMALLOC_PURGE_DELAY"] == "0"
    # What a user has set stays.
    code = "from volley.process.allocator import little_memory; print(little_memory(1))"
    environment = os.environ | {"MIMALLOC_PURGE_DELAY": "77"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "{}"
