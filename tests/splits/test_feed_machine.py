# SPDX-License-Identifier: Apache-2.0
"""A feed as a state machine: whoever asks in whatever order, and whatever is lost, no split is lost or doubled."""

from __future__ import annotations

import asyncio

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from volley.splits.feed import Feed
from volley.splits.source import Estimate, Split

TASKS = 3


class Numbers:
    schema = pa.schema([])

    def __init__(self, count: int) -> None:
        self._count = count

    def splits(self) -> object:
        return (Split(str(number).encode(), number % 5) for number in range(self._count))

    def estimate(self) -> Estimate:
        return Estimate(self._count, 0, final=True)

    def close(self) -> None:
        pass


class FeedMachine(RuleBasedStateMachine):
    """`read` is what each attempt has, by task: the current one is last, and starts again at 0 when it is lost."""

    @initialize(count=st.integers(0, 40))
    def start(self, count: int) -> None:
        self.count = count
        self.loop = asyncio.new_event_loop()
        self.read: dict[int, list[list[bytes]]] = {task: [[]] for task in range(TASKS)}
        self.after = dict.fromkeys(range(TASKS), 0)
        self.is_over = dict.fromkeys(range(TASKS), False)
        self.committed: set[int] = set()
        self.feed = self.loop.run_until_complete(self._open())

    async def _open(self) -> Feed:
        feed = Feed("numbers", Numbers(self.count))  # type: ignore[arg-type]
        feed.start()
        await feed.wait_discovered()
        return feed

    @rule(task=st.integers(0, TASKS - 1), credits=st.integers(1, 9), is_lost=st.booleans())
    def take(self, task: int, credits: int, is_lost: bool) -> None:
        """Ask for more. If the answer is lost, the same is asked for again."""
        share = self.loop.run_until_complete(self.feed.take(task, self.after[task], credits, tasks=TASKS))
        if is_lost:
            return
        self.read[task][-1] += share.splits
        self.after[task] = share.after
        self.is_over[task] = share.over

    @rule(task=st.integers(0, TASKS - 1))
    def lose_attempt(self, task: int) -> None:
        self.read[task].append([])
        self.after[task] = 0
        self.is_over[task] = False

    @rule(task=st.integers(0, TASKS - 1), sure=st.integers(0, 9))
    def commit(self, task: int, sure: int) -> None:
        if sure == 9:
            self.feed.commit(task)
            self.committed.add(task)

    @precondition(lambda self: hasattr(self, "feed"))
    @invariant()
    def attempts_agree_and_tasks_share_nothing(self) -> None:
        longest = []
        for attempts in self.read.values():
            full = max(attempts, key=len)
            assert all(attempt == full[: len(attempt)] for attempt in attempts)
            longest += full
        assert len(longest) == len(set(longest))

    def teardown(self) -> None:
        """Let every attempt read to its end: all splits are there, once."""
        if not hasattr(self, "feed"):
            return
        for task in range(TASKS):
            while not self.is_over[task]:
                self.take(task, 5, False)
        self.attempts_agree_and_tasks_share_nothing()
        # A task that committed gets no more, so what nobody took is left when all of them have.
        if len(self.committed) < TASKS:
            found = {split for attempts in self.read.values() for split in max(attempts, key=len)}
            assert found == {str(number).encode() for number in range(self.count)}
        self.feed.forget()
        self.loop.run_until_complete(self.feed.stop())
        self.loop.close()


TestFeed = FeedMachine.TestCase
TestFeed.settings = settings(max_examples=25, stateful_step_count=30)
