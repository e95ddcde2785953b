# SPDX-License-Identifier: Apache-2.0
"""What the subqueries of a query gave, for the stages whose plans ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from volley.batches import make_batch
from volley.coordinator.manifest import Manifest
from volley.errors import BlockMissing
from volley.ids import AttemptId
from volley.loop import Work, run_blocking
from volley.stages.graph import Stage, result_schema
from volley.stages.subqueries import asked, with_results
from volley.transport.base import Transport


class Subquery(Protocol):
    """The run of the last stage of a subquery."""

    stage: Stage
    finished: asyncio.Event

    async def whole(self) -> Manifest: ...

    def lose(self, attempts: Set[AttemptId] = ..., worker: str | None = None) -> None: ...


class Answers:
    """Reads each result once, when somebody asks for it. On one event loop."""

    def __init__(self, runs: Mapping[int, Subquery], transport: Transport, attempts: int) -> None:
        self._runs = runs
        self._transport = transport
        self._attempts = attempts
        self._results: dict[int, pa.Table] = {}
        self._reading = {number: asyncio.Lock() for number in runs}

    async def filled(self, stage: Stage) -> Stage:
        """The stage with what it asks for in its place; waits for that. DataError if it cannot stand there."""
        numbers = asked(stage.plan) if self._runs else frozenset()
        if not numbers:
            return stage
        results = {number: await self._result(number) for number in sorted(numbers)}
        return replace(stage, plan=with_results(stage.plan, results))

    async def _result(self, number: int) -> pa.Table:
        await self._runs[number].finished.wait()
        async with self._reading[number]:
            if number not in self._results:
                self._results[number] = await self._read(self._runs[number])
            return self._results[number]

    async def _read(self, run: Subquery) -> pa.Table:
        for _ in range(self._attempts):
            manifest = await run.whole()
            try:
                batches = await run_blocking(Work.FETCH, self._fetched, manifest)
            except BlockMissing as error:
                missing = error
                # Computed again by the next look at the whole.
                run.lose({error.attempt} if error.attempt else frozenset())
                continue
            schema = result_schema(run.stage.plan.output)
            return pa.Table.from_batches(
                [make_batch(batch.columns, schema, batch.num_rows) for batch in batches], schema
            )
        raise missing

    def _fetched(self, manifest: Manifest) -> list[pa.RecordBatch]:
        return [
            batch
            for task in manifest.blocks
            for block in task
            if block.rows
            for batch in self._transport.fetch(block)
        ]
