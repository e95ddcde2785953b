# SPDX-License-Identifier: Apache-2.0
"""The native side of one query: the runs that it starts, and what it holds until they are over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from volley.bridge.boundary import EngineBoundary
from volley.bridge.frame_loader import FrameLoader
from volley.bridge.frame_scans import MAX_SENT_BYTES, CachedFrames
from volley.bridge.frame_sender import FrameSender
from volley.bridge.function_files import FunctionFiles
from volley.bridge.native_to_spark import SparkPart, SparkRows
from volley.bridge.recursion import run_recursions
from volley.bridge.remote_frames import RemoteFrames
from volley.bridge.spark_task_reader import Access
from volley.bridge.spark_to_native import SparkInput, SparkInputs
from volley.bridge.write_command import run_over
from volley.cancellation import CancellationToken
from volley.config import Config
from volley.coordinator.manifest import Manifest
from volley.coordinator.materialized_result import MaterializedResult
from volley.coordinator.options import RunOptions
from volley.coordinator.result import ResultStream
from volley.coordinator.run import execute, materialize
from volley.deployment.base import Deployment
from volley.deployment.checkpoints import open_checkpoint
from volley.events import Event, EventLog, QueryFinished, TaskFinished, TaskStarted
from volley.ids import QueryId
from volley.lru_cache import LruCache
from volley.observe.progress import progress_listeners
from volley.observe.query_tracer import QueryTracer
from volley.observe.recorder import QueryRecorder
from volley.observe.report import StageReport
from volley.observe.stage_reports import stage_reports
from volley.plan.jvm import Java
from volley.plan.nodes import FileScan, Node
from volley.process.machine import available_memory_bytes
from volley.query import session_state
from volley.query.interrupts import job_tag, stop_jobs
from volley.query.session_state import Label, RunningQuery
from volley.rpc.messages import TaskDone
from volley.shuffle.session_options import options_to_send
from volley.splits.measure import fits_one_task, measure
from volley.stages.cut import make_stages, note_division, note_single_task, partition_result, store_result
from volley.stages.graph import StageGraph
from volley.stages.limits import PlannerLimits
from volley.stages.scans import read_bytes, scans_of
from volley.storage.registry import shared_stores
from volley.transport.base import Transport

Running = TypeVar("Running")

# Cached frames may take this part of the memory.
_CACHE_SHARE = 4
# If a query does not fit into memory, each of up to two retries has this many times as many tasks.
_DIVIDED_BY = 8
_MOST_DIVIDED = 64


class NativeRun:
    """Owns the rows between the engines, the native subplans and the event logs of one query, until `close`.

    A restarted query reuses it. `labels` are the job group and tags under which it began.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        deployment: Deployment,
        *,
        session: str,
        query: QueryId,
        labels: frozenset[Label],
        recorder: QueryRecorder | None = None,
        tracer: QueryTracer | None = None,
        frames: CachedFrames | None = None,
    ) -> None:
        self.boundary = EngineBoundary(self.materialize)
        self.writer_began = False
        """Whether Spark's writer has begun. Its leftovers could break a second try."""
        self._spark = spark
        self._config = config
        self._limits = PlannerLimits.of(config)
        self._division = 1
        self._takes_over = True
        self._deployment = deployment
        self._session = session
        self._query = query
        self._labels = labels
        self._recorder = recorder
        self._tracer = tracer
        self._inputs: SparkInputs | None = None
        self._subplans: list[MaterializedResult] = []
        self._top: ResultStream | None = None
        self._logs: list[EventLog] = []
        self._frames = frames or CachedFrames()
        self._fills: list[EventLog] = []
        self._sent = FrameSender(deployment.ingest, MAX_SENT_BYTES)
        self._stored = RemoteFrames(
            self._frames, self._store_frame, lambda: self._deployment.open().holders(), config.cache_memory
        )
        self._loader = FrameLoader(
            spark,
            self._frames,
            self._fill_frame,
            budget_bytes=lambda: config.cache_memory or available_memory_bytes() // _CACHE_SHARE,
            directory=Path(tempfile.gettempdir()),
            sent=self._sent if deployment.is_remote else None,
            stored=self._stored if deployment.is_remote else None,
        )

    def start(
        self,
        plan: Node | SparkPart,
        inputs: tuple[SparkInput, ...] = (),
        *,
        is_kept: bool = False,
        holds_result: bool = False,
    ) -> ResultStream | SparkRows:
        """Start a plan. Everything below it that Spark runs is complete when this returns.

        `is_kept`: the same query gets this plan again, so its stages are worth keeping. `holds_result`: no row is
        needed before all are there, so a lost worker only repeats its own tasks.
        """
        if isinstance(plan, SparkPart):
            self._subplans.clear()
            return SparkRows(plan.batches(self.boundary))
        if inputs:
            if self._inputs is None:
                self._inputs = SparkInputs(inputs, self.boundary, self._deployment.ingest)
            plan = self._inputs.fill(plan)
        # A plan that is kept has no recursive query.
        plan = self._loader.load(plan if is_kept else run_recursions(plan, self.run_beside))
        transport = self._deployment.open()
        graph = self._graph(plan, transport, is_kept)
        self._top = self._begin(execute, graph, transport, holds_result)
        return self._top

    def write_by_spark(self, part: SparkPart, command: Java) -> None:
        """Let Spark's writer write the rows of its part, whose subplans are computed first."""
        self._subplans.clear()
        with self.boundary.read_by_spark(commits=True):
            rows = part.logical(self.boundary)
            self.writer_began = True
            run_over(self._spark, command, rows)

    def materialize(self, subplan: Node, resources: ExitStack) -> tuple[MaterializedResult, Access]:
        """Run a subplan; its rows stay where Spark's tasks can read them."""
        transport, access = self._deployment.open_for_spark(resources)
        plan = self._loader.load(run_recursions(subplan, self.run_beside))
        graph = partition_result(self._graph(plan, transport), self._spark.sparkContext.defaultParallelism)
        output = self._begin(materialize, graph, transport)
        output.on_cancel(partial(stop_jobs, self._spark.sparkContext, job_tag(self._query)))
        self._subplans.append(output)
        return output, access

    def _fill_frame(self, plan: Node) -> ResultStream:
        """Run the plan of a cached frame."""
        transport = self._deployment.open()
        plan = run_recursions(plan, self.run_beside)
        stream = self._begin(execute, self._graph(plan, transport), transport)
        self._fills.append(self._logs[-1])
        return stream

    def _store_frame(self, plan: Node) -> tuple[MaterializedResult, Manifest]:
        """Run the plan of a cached frame, whose rows stay with the workers."""
        transport = self._deployment.open()
        plan = self._loader.load(run_recursions(plan, self.run_beside))
        graph = store_result(self._graph(plan, transport), len(transport.workers()))
        result = self._begin(materialize, graph, transport, keeps_result=True)
        # Not the result itself, which would keep the rows.
        self._fills.append(self._logs[-1])
        return result, result.manifest()

    def forget_stored_frames(self) -> bool:
        """Compute the cached frames that this query reads of its workers again. False if there are none."""
        return self._stored.forget()

    def run_beside(self, plan: Node) -> ResultStream:
        """Run a native plan that belongs to the query: a step of a recursive one, or its metrics."""
        return self._fill_frame(self._loader.load(plan))

    def divide(self) -> bool:
        """Divide the next try into more tasks than there are workers, so that each needs less memory.

        The rows between them go through exchanges, which spill: a join that does not fit becomes a grace hash join.
        False if dividing it further would not help.
        """
        if self._division >= _MOST_DIVIDED:
            return False
        self._division *= _DIVIDED_BY
        return True

    def renew_checkpoint(self) -> None:
        """Compute and keep every stage of the next try, because some of those in the checkpoint cannot be read."""
        self._takes_over = False

    def close(self) -> None:
        """Free everything. May be called again."""
        with ExitStack() as closing:  # If one close fails, the others still run.
            closing.callback(self._frames.release)
            closing.callback(self._stored.close)
            closing.callback(self._sent.close)
            if self._inputs is not None:
                closing.callback(self._inputs.close)
            closing.callback(self.boundary.close)

    def stages(self) -> tuple[StageReport, ...]:
        """What the stages of the last try did, those of subplans first."""
        logs = [fill.events for fill in self._fills]
        logs += [subplan.events for subplan in self._subplans]
        if self._top is not None:
            logs.append(self._top.events)
        return tuple(stage for events in logs for stage in stage_reports(events))

    def native_tasks(self) -> int:
        """Every attempt at a task, of all tries."""
        return sum(isinstance(event, TaskStarted) for log in self._logs for event in log.events)

    def jvm_use(self) -> tuple[int, float]:
        """Rows that workers in other processes sent to the JVMs beside them, and seconds spent there."""
        finished = [event for log in self._logs for event in log.events if isinstance(event, TaskFinished)]
        return sum(event.metrics.jvm_rows for event in finished), sum(
            event.metrics.jvm_seconds for event in finished
        )

    def _outputs(self) -> Mapping[int, Sequence[TaskDone]]:
        """The inputs of plans that are in the stores already."""
        of_spark = self._inputs.outputs if self._inputs is not None else {}
        return {**of_spark, **self._sent.outputs, **self._stored.outputs}

    def _graph(self, plan: Node, transport: Transport, is_kept: bool = False) -> StageGraph:
        workers = len(transport.workers())
        if self._division > 1:
            tasks = workers * self._division
            return note_division(make_stages(measure(plan), tasks, self._run_limits), tasks)
        if workers == 1:
            return _kept_graph(plan, self._limits) if is_kept else make_stages(plan, 1, self._limits)
        plan = measure(plan)
        if fits_one_task(plan, self._limits):
            return note_single_task(make_stages(plan, 1, self._limits))
        return make_stages(plan, workers, self._limits)

    @property
    def _run_limits(self) -> PlannerLimits:
        return self._limits if self._division == 1 else self._limits.divide(self._division)

    def _begin(
        self,
        begin: Callable[[StageGraph, Transport, RunOptions], Running],
        graph: StageGraph,
        transport: Transport,
        holds_result: bool = False,
        keeps_result: bool = False,
    ) -> Running:
        files = FunctionFiles()
        if self._deployment.is_remote:
            graph = files.send(graph)
        input_bytes = partial(_input_bytes, graph)
        recorders = [self._recorder.listen(input_bytes)] if self._recorder else []
        tracers = [self._tracer] if self._tracer else []
        token = CancellationToken()
        query = RunningQuery(str(self._query), self._session, token, self._labels)

        def note_end(event: Event) -> None:
            # Materialized results outlive their query.
            if isinstance(event, QueryFinished):
                session_state.unregister(query)

        progress = progress_listeners(self._config.progress, input_bytes)
        events = EventLog(*tracers, *recorders, *progress, note_end)
        self._logs.append(events)
        # The token must not reference this query, or a dropped query would run forever.
        token.on_fire(lambda: session_state.unregister(query))
        try:
            session_state.register(query)
            stores = graph.stores
            options = RunOptions(
                token=token,
                timeout_seconds=self._config.timeout_seconds,
                attempts=self._config.task_attempts,
                events=events,
                limits=self._run_limits,
                absence_seconds=self._deployment.absence_seconds,
                materialized_inputs=self._outputs(),
                traceparent=self._tracer.traceparent if self._tracer else lambda stage: "",
                settings=options_to_send(self._config),
                # Sorting both sides costs more than dividing them, if the query is not divided yet.
                sorts_joins=self._division > 1 or len(graph.stages) - len(graph.subqueries) > 1,
                stores=(lambda: shared_stores().renewed_settings(stores)) if stores else None,
                holds_result=holds_result,
                files=files.feeds,
                keeps_result=keeps_result,
                # In-process workers are lost only together with the driver.
                resumes_result=self._deployment.is_remote,
                checkpoint=open_checkpoint(self._config, takes_over=self._takes_over),
            )
            return begin(graph, transport, options)
        except BaseException:
            # An interrupt may arrive after the query started and before there is a stream to close it.
            token.cancel("it was interrupted while it started")
            raise


# By the identity of the plan. The value holds the plan, so that no other can have its identity.
_graphs: LruCache[tuple[int, PlannerLimits], tuple[Node, StageGraph]] = LruCache(128)


def _kept_graph(plan: Node, limits: PlannerLimits) -> StageGraph:
    key = (id(plan), limits)
    if (found := _graphs.get(key)) is None:
        _graphs.put(key, found := (plan, make_stages(plan, 1, limits)))
    return found[1]


def _input_bytes(graph: StageGraph) -> int:
    """An upper bound on the bytes that the scans of a query read; 0 if a source does not know its size."""
    # Footers of objects are not worth a request here.
    measured = (lambda plan: plan) if graph.stores else measure
    scans = [scan for stage in graph.stages for scan in scans_of(measured(stage.plan))]
    if not all(isinstance(scan, FileScan) for scan in scans):
        return 0
    return sum(read_bytes(scan) for scan in scans if isinstance(scan, FileScan))
