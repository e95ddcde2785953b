# SPDX-License-Identifier: Apache-2.0
"""The scans of a running stage: the plan that each task gets, and the answers to its split requests.

one task        reads all files itself, in one DataFusion scan
several tasks   each get their own files, if these can be dealt evenly to workers of equal size
otherwise       the scan is fed: the task's plan has a `FeedInput`, and splits arrive while it runs
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any

from volley.events import FeedStatus, SplitCounts
from volley.plan.fed_scans import fed_scan, with_files
from volley.plan.nodes import DataFile, FeedInput, FileScan, Node, SourceScan, with_children
from volley.process.loop import Work, run_blocking
from volley.rpc.messages import SplitBatch, SplitRequest
from volley.splits.factory import source_of
from volley.splits.feed import Feed, Share
from volley.splits.file_feed import FileFeed
from volley.stages.graph import Stage
from volley.stages.layout import is_shared_write, share_files
from volley.stages.limits import PlannerLimits
from volley.stages.scans import assign_files, push_down, scans_of
from volley.transport.base import RunningTask

# How often progress is reported. Events are kept, so there cannot be one per split.
_REPORT_SECONDS = 1.0

NO_FILES: Mapping[int, FileFeed] = {}


class Feeding:
    """The feeds of one stage, and the plans of its tasks. Lives on one event loop."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        reads_alike: bool,
        equal_workers: bool,
        limits: PlannerLimits,
        files: Mapping[int, FileFeed] = NO_FILES,
    ) -> None:
        """`reads_alike`: what a task reads from other stages does not depend on the number of tasks.
        `equal_workers`: all workers have the same number of cores. `files` are sent to tasks that ask for them.
        """
        self._files = files
        self._feeds: list[Feed] = []
        self._dealt: dict[int, _Dealt] = {}
        self._equal_workers = equal_workers
        self._limits = limits
        self._plan = self._replace_scans(stage, name)
        # Adding a task to a plan made for one task gives wrong rows. So does changing the number of tasks when inputs
        # are dealt out by that number.
        fed_only = bool(self._feeds) and len(self._feeds) == len(scans_of(stage.plan))
        self.may_grow = stage.tasks > 1 and fed_only and reads_alike and not is_shared_write(stage.plan)
        self._tasks = stage.tasks

    def _replace_scans(self, stage: Stage, name: str) -> Node:
        def replace_scan(node: Node) -> Node:
            scan = fed_scan(node)
            if scan is None or (stage.tasks == 1 and self._is_planned(scan, 1)):
                return with_children(node, tuple(replace_scan(child) for child in node.children))
            label = f"{name} scan {len(self._feeds) + len(self._dealt)}"
            if isinstance(scan, SourceScan):
                label = scan.name
            elif (
                self._equal_workers
                and self._is_planned(scan, stage.tasks)
                and (shares := assign_files(scan, stage.tasks, self._limits))
            ):
                self._dealt[id(scan)] = _Dealt(label, shares)
                return node
            self._feeds.append(Feed(label, source_of(scan, stage.tasks, self._limits)))
            return FeedInput(len(self._feeds) - 1, with_files(node, ()))

        plan = push_down(stage.plan)
        if stage.tasks == 1 and all(self._is_planned(scan, 1) for scan in scans_of(plan)):
            return plan
        return replace_scan(plan)

    def _is_planned(self, scan: FileScan | SourceScan, tasks: int) -> bool:
        """Whether the files are few enough for the plans of so many tasks."""
        return isinstance(scan, FileScan) and len(scan.files) <= tasks * self._limits.planned_files

    def plan_of(self, task: int) -> Node:
        """The plan of one task, with its share of the dealt files, and of those that it writes."""
        plan = share_files(self._plan, task, self._tasks)
        if not self._dealt:
            return plan

        def assign_files(node: Node) -> Node:
            # The scan lives as long as the plan, so its id() is unique.
            if isinstance(node, FileScan) and id(node) in self._dealt:
                return replace(node, files=self._dealt[id(node)].shares[task])
            return with_children(node, tuple(assign_files(child) for child in node.children))

        return assign_files(plan)

    def __bool__(self) -> bool:
        return bool(self._feeds or self._dealt)

    def known_splits(self) -> int:
        """A lower bound on the number of splits, from the feeds that know theirs before discovery."""
        estimates = [feed.estimate() for feed in self._feeds]
        return max((estimate.splits for estimate in estimates if estimate.final), default=0)

    def start(self) -> None:
        for feed in self._feeds:
            feed.start()

    async def watch(self) -> None:
        """Wait for the end of all discovery. Raises as soon as one feed fails."""
        await _gather(feed.wait_discovered() for feed in self._feeds)

    async def wait_for_surplus(self, tasks: int) -> bool:
        """Wait until a feed has more splits than `tasks` tasks take. False if none will have."""
        waits = [asyncio.create_task(feed.wait_for_surplus(tasks)) for feed in self._feeds]
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
        """Answer the split requests of an attempt until it ends. Raises as soon as one answer fails."""
        if not self._feeds and not self._files:
            return
        answers: set[asyncio.Task[None]] = set()
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(answer: asyncio.Task[None]) -> None:
            answers.discard(answer)
            error = None if answer.cancelled() else answer.exception()
            if error is not None and not failed.done():
                failed.set_exception(error)

        async def listen() -> None:
            async for request in running.split_requests():
                # Each in its own task: a feed with nothing queued must not delay another.
                answer = asyncio.create_task(self._answer(running, request, worker, tasks()))
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

    async def _answer(self, running: RunningTask, request: SplitRequest, worker: str, tasks: int) -> None:
        if file := self._files.get(request.feed):
            pieces = await run_blocking(Work.FILES, file.take, request.after, request.credits)
            await running.give(_batch(request, pieces))
            return
        host = request.host or worker.rpartition(":")[0]
        feed = self._feeds[request.feed]
        feed.record_read(request.attempt.task.task, request.read)
        share = await feed.take(request.attempt.task.task, request.after, request.credits, host, tasks)
        await running.give(_batch(request, share))

    async def report_progress(self, report: Callable[[SplitCounts], None]) -> None:
        """Report the split counts whenever they have changed, until cancelled."""
        last: SplitCounts | None = None
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if (counts := self.counts()) != last:
                last = counts
                report(counts)

    def counts(self) -> SplitCounts:
        """How many splits of all scans are found, queued, running and done."""
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
        """Stop discovery. Splits that were handed out can still be read again by a retry."""
        await asyncio.gather(*(feed.stop() for feed in self._feeds))

    async def close(self) -> None:
        await self.stop()
        for feed in self._feeds:
            feed.forget()

    @property
    def is_exhausted(self) -> bool:
        """Whether every split has been found and handed to a task."""
        return all(status.final and not status.queued for status in self.status())

    def status(self) -> list[FeedStatus]:
        return [scan.status() for scan in self._scans()]

    def _scans(self) -> list[Feed | _Dealt]:
        return [*self._feeds, *self._dealt.values()]


class _Dealt:
    """A scan whose files were dealt to the tasks. Each file counts as a split."""

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


def _batch(request: SplitRequest, share: Share) -> SplitBatch:
    return SplitBatch(request.attempt, request.feed, request.after, share.splits, share.after, share.over)


async def _gather(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
