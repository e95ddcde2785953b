# SPDX-License-Identifier: Apache-2.0
"""The scans of a running stage: what each task is told of them, and who answers when it wants splits.

one task       reads files that are all known itself, in one DataFusion scan
several        do the same, each with files of its own, where these can be dealt evenly to workers of one size
otherwise      they are fed: the scan in the task's plan is a `FeedInput`, and splits come while it runs
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from volley.events import FeedStatus, SplitCounts
from volley.plan.fed_scans import fed_scan, over_files
from volley.plan.nodes import DataFile, FeedInput, FileScan, Node, SourceScan, with_children
from volley.rpc.messages import SplitBatch, SplitRequest
from volley.splits.feed import Feed
from volley.splits.readers import source_of
from volley.stages.graph import Stage
from volley.stages.limits import PlannerLimits
from volley.stages.scans import dealt, push_down, scans_of
from volley.transport.base import RunningTask

# How often the progress of a query is told: its events are kept, so not at every split.
_TELL_SECONDS = 1.0


class Feeding:
    """The feeds of one stage, and its plan as tasks get it. On one event loop."""

    def __init__(
        self, stage: Stage, name: str, reads_alike: bool, equal_workers: bool, limits: PlannerLimits
    ) -> None:
        """`reads_alike`: what a task reads of other stages does not depend on how many tasks there are.
        `equal_workers`: none has more cores than another.
        """
        self._feeds: list[Feed] = []
        self._dealt: dict[int, _Dealt] = {}
        self._equal_workers = equal_workers
        self._limits = limits
        self._plan = self._fed(stage, name)
        # A plan that was made for one task gives wrong rows with more, and so do inputs that are dealt out by the
        # number of tasks, once it changes.
        fed_only = bool(self._feeds) and len(self._feeds) == len(scans_of(stage.plan))
        self.may_grow = stage.tasks > 1 and fed_only and reads_alike

    def _fed(self, stage: Stage, name: str) -> Node:
        def replaced(node: Node) -> Node:
            scan = fed_scan(node)
            if scan is None or (isinstance(scan, FileScan) and stage.tasks == 1):
                return with_children(node, tuple(replaced(child) for child in node.children))
            label = f"{name} scan {len(self._feeds) + len(self._dealt)}"
            if isinstance(scan, SourceScan):
                label = scan.name
            elif self._equal_workers and (shares := dealt(scan, stage.tasks, self._limits)):
                self._dealt[id(scan)] = _Dealt(label, shares)
                return node
            self._feeds.append(Feed(label, source_of(scan, stage.tasks, self._limits)))
            return FeedInput(len(self._feeds) - 1, over_files(node, ()))

        return replaced(push_down(stage.plan))

    def plan_of(self, task: int) -> Node:
        """The plan as a task gets it."""

        def with_its_files(node: Node) -> Node:
            # A scan of the plan lives as long as the plan, so nothing else has its identity.
            if isinstance(node, FileScan) and id(node) in self._dealt:
                return replace(node, files=self._dealt[id(node)].shares[task])
            return with_children(node, tuple(with_its_files(child) for child in node.children))

        return with_its_files(self._plan)

    def __bool__(self) -> bool:
        return bool(self._feeds or self._dealt)

    def known_splits(self) -> int:
        """How many splits there are at least, as far as that is certain before anybody looks for them."""
        estimates = [feed.estimate() for feed in self._feeds]
        return max((estimate.splits for estimate in estimates if estimate.final), default=0)

    def start(self) -> None:
        for feed in self._feeds:
            feed.start()

    async def watch(self) -> None:
        """Returns when all discovery is over; raises as soon as one fails."""
        await _all(feed.over() for feed in self._feeds)

    async def surplus(self, tasks: int) -> bool:
        """Waits until some feed has more splits than the tasks there are take; False when none will."""
        waits = [asyncio.create_task(feed.surplus(tasks)) for feed in self._feeds]
        try:
            for done in asyncio.as_completed(waits):
                if await done:
                    return True
            return False
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def serve(self, running: RunningTask, worker: str, tasks: Callable[[], int]) -> None:
        """Answer everything that an attempt wants, until it ends. Raises as soon as one answer fails."""
        if not self._feeds:
            return
        answers: set[asyncio.Task[None]] = set()
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(answer: asyncio.Task[None]) -> None:
            answers.discard(answer)
            error = None if answer.cancelled() else answer.exception()
            if error is not None and not failed.done():
                failed.set_exception(error)

        async def listen() -> None:
            async for want in running.split_requests():
                # Each by itself: a feed that has nothing now must not hold up another.
                answer = asyncio.create_task(self._answer(running, want, worker, tasks()))
                answers.add(answer)
                answer.add_done_callback(ended)

        listening = asyncio.create_task(listen())
        try:
            done, _ = await asyncio.wait({listening, failed}, return_when=asyncio.FIRST_COMPLETED)
            for ready in done:
                ready.result()
        finally:
            failed.cancel()
            everything = [listening, *answers]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _answer(self, running: RunningTask, want: SplitRequest, worker: str, tasks: int) -> None:
        host = want.host or worker.rpartition(":")[0]
        feed = self._feeds[want.feed]
        feed.has_read(want.attempt.task.task, want.read)
        share = await feed.take(want.attempt.task.task, want.after, want.credits, host, tasks)
        await running.give(
            SplitBatch(want.attempt, want.feed, want.after, share.splits, share.after, share.over)
        )

    async def tell(self, tell: Callable[[SplitCounts], None]) -> None:
        """Again and again, until it is cancelled, what has changed."""
        told: SplitCounts | None = None
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            if (counts := self.counts()) != told:
                told = counts
                tell(counts)

    def counts(self) -> SplitCounts:
        """Where the splits of all its scans are."""
        found = self.status()
        return SplitCounts(
            sum(status.found for status in found),
            sum(status.queued for status in found),
            sum(status.running for status in found),
            sum(status.done for status in found),
        )

    def commit(self, task: int) -> None:
        for scan in self._scans():
            scan.commit(task)

    async def stop(self) -> None:
        """No more discovery; what was taken can still be read again."""
        await asyncio.gather(*(feed.stop() for feed in self._feeds))

    async def close(self) -> None:
        await self.stop()
        for feed in self._feeds:
            feed.forget()

    @property
    def is_exhausted(self) -> bool:
        """Whether everything that there is to read has been found and given to tasks."""
        return all(status.final and not status.queued for status in self.status())

    def status(self) -> list[FeedStatus]:
        return [scan.status() for scan in self._scans()]

    def _scans(self) -> list[Feed | _Dealt]:
        return [*self._feeds, *self._dealt.values()]


class _Dealt:
    """A scan whose files were dealt to the tasks, each file a split."""

    def __init__(self, name: str, shares: tuple[tuple[DataFile, ...], ...]) -> None:
        self.name = name
        self.shares = shares
        self._committed: set[int] = set()

    def commit(self, task: int) -> None:
        self._committed.add(task)

    def status(self) -> FeedStatus:
        by_task = tuple(map(len, self.shares))
        bytes_by_task = tuple(sum(file.size_bytes for file in files) for files in self.shares)
        done = sum(by_task[task] for task in self._committed)
        found = sum(by_task)
        return FeedStatus(
            self.name, found, 0, found - done, done, by_task, bytes_by_task, sum(bytes_by_task), final=True
        )


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
