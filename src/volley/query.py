# SPDX-License-Identifier: Apache-2.0
"""The life of a query: from an action on a DataFrame to its rows, natively or on Spark.

    settings -> Spark's plan -> capture -> check -> stages -> coordinator -> rows

Wherever that road ends early, Spark runs the query, and the report says why.
"""

from __future__ import annotations

import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from volley import history
from volley.bridge.boundary import EngineBoundary
from volley.bridge.commit import Staging
from volley.bridge.native_to_spark import SparkPart, SparkRows, spark_part
from volley.bridge.reading import Access
from volley.bridge.result import NativeResult
from volley.bridge.served import Served, can_be_read
from volley.bridge.spark_to_native import IngestTarget, SparkInputs, find_spark_inputs
from volley.bridge.write import commit, files_of, laid_out, write_plan
from volley.bridge.write_command import WriteCommand, analyzed, read_command, rows_of, run_over, tell_spark
from volley.cancellation import CancellationToken
from volley.config import Config
from volley.coordinator.materialized_result import MaterializedResult
from volley.coordinator.options import NOTHING_GIVEN, RunOptions
from volley.coordinator.result import ResultStream
from volley.coordinator.run import execute, materialize
from volley.errors import (
    CaptureError,
    CommitError,
    ConfigError,
    CrossingError,
    DataError,
    DeadlineExceeded,
    FallbackError,
    QueryCancelled,
    ResultInterrupted,
    SourceError,
    VolleyError,
)
from volley.events import EventLog, TaskStarted
from volley.ids import QueryId
from volley.loop import shared_loop
from volley.machine import available_cores
from volley.observe.progress import progress_listeners
from volley.observe.report import Engine, QueryReport
from volley.observe.stages import stage_reports
from volley.observe.tasks import TaggedJobs, spark_tasks
from volley.plan.capture import Origins, capture
from volley.plan.jvm import Java
from volley.plan.nodes import Node
from volley.rpc.messages import TaskDone
from volley.security import Security
from volley.settings import settings
from volley.shuffle.base import SharedStore
from volley.shuffle.factory import ShuffleConfig, driver_store, serving_store
from volley.shuffle.memory import MemoryStore
from volley.splits.datasource import NotPortable, portable_plan
from volley.splits.measure import fits_one_task, measure
from volley.stages.cut import alone, kept, make_stages
from volley.stages.graph import StageGraph
from volley.stages.limits import PlannerLimits
from volley.support.check import check
from volley.support.reasons import Reason, Unsupported
from volley.transport.base import Transport
from volley.transport.flight import FlightTransport, shared_fleet
from volley.transport.local import LocalTransport
from volley.transport.spark import SparkTransport, application
from volley.transport.spark_control import driver_hosts, on_this_machine
from volley.worker.server import ServingStore

Answer = TypeVar("Answer")
Running = TypeVar("Running")


def run(
    frame: DataFrame, action: str, *, native: Callable[[NativeResult], Answer], spark: Callable[[], Answer]
) -> Answer:
    """Answer an action: `native` makes the answer out of a native result, `spark` asks Spark for it."""
    query = Query(frame.sparkSession, action)
    with closing(query), query.tagged() as jobs:
        plan = query.native_plan(frame._jdf.queryExecution())
        tries = query.config.task_attempts if plan is not None else 0
        while plan is not None and tries:
            tries -= 1
            try:
                with query.executed(plan) as stream:
                    result = NativeResult(stream, plan.output)
                    answer = native(result)
                query.finished(query.engine, result.rows, jobs.tasks())
                return answer
            except ResultInterrupted as error:
                # Nobody has seen an answer yet, so the rows that came in are simply dropped.
                if not tries:
                    raise
                query.interrupted(error)
            except VolleyError as error:
                query.replay(error)
                break
        answer = spark()
        query.finished("spark", len(answer) if isinstance(answer, list) else 0, jobs.tasks())
        query.allow_spark()
        return answer


def stream(
    frame: DataFrame,
    action: str,
    *,
    native: Callable[[pa.Table], list[Any]],
    spark: Callable[[], Iterator[Any]],
) -> Iterator[Any]:
    """Answer an action row by row, a batch in memory at a time; `native` makes rows out of a batch.

    Once a row is out the query cannot be replayed any more: a later failure is raised.
    """
    query = Query(frame.sparkSession, action)
    # Rows are taken between other work of this thread, so its jobs cannot be told apart: count the application's.
    before = spark_tasks(query.spark)
    plan = query.native_plan(frame._jdf.queryExecution(), subplans=False)
    if plan is None:
        return query.passed_on(spark(), before)
    try:
        result = query.executed(plan)
        batches = iter(result)
        first = next(batches, None)
    except VolleyError as error:
        query.close()
        query.replay(error)
        return query.passed_on(spark(), before)
    except BaseException:
        query.close()
        raise
    named = NativeResult(batches, plan.output)

    def rows() -> Iterator[Any]:
        with closing(query), closing(result):
            if first is not None:
                yield from native(named.named(first))
            for batch in named:
                yield from native(named.named(batch))
        rows = named.rows + (first.num_rows if first else 0)
        query.finished(query.engine, rows, spark_tasks(query.spark) - before)

    return rows()


def write(spark: SparkSession, action: str, command: Java, original: Callable[[], None]) -> None:
    """Write what a logical command of Spark says, natively or through `original`.

    Rows go from the workers to files that nobody sees; when all of them are there, one commit makes them the table.
    """
    query = Query(spark, action)
    command = analyzed(spark, command)
    with closing(query), query.tagged() as jobs:
        write, plan = query.native_write(command)
        tries = query.config.task_attempts if plan is not None else 0
        while plan is not None and tries:
            tries -= 1
            try:
                if isinstance(plan, SparkPart):
                    query.write_by_spark(plan, command)
                    query.finished(query.engine, 0, jobs.tasks())
                    return
                assert write is not None
                with Staging(write.directory, write.replaces_all) as staging:
                    node = write_plan(plan, write, staging)
                    with query.executed(node) as stream:
                        files = list(files_of(stream))
                    if write.table is not None:
                        write.table.make_way()
                    commit(files, node, write, staging)
                tell_spark(spark, write, {file.partition for file in files})
                query.finished(query.engine, sum(file.rows for file in files), jobs.tasks())
                return
            except ResultInterrupted as error:
                # What the attempts wrote is gone with the staging directory.
                if not tries:
                    raise
                query.interrupted(error)
            except VolleyError as error:
                if isinstance(plan, SparkPart) and isinstance(error, CrossingError):
                    # Spark's writer had begun, and what it left may be in the way of a second try.
                    raise
                query.replay(error)
                break
        original()
        query.finished("spark", 0, jobs.tasks())
        if plan is not None:
            query.allow_spark()


class Query:
    """One action on its way; keeps what its report will say."""

    def __init__(self, spark: SparkSession, action: str) -> None:
        self.spark = spark
        self.action = action
        self.id = QueryId.new()
        self.config = Config.read(settings(spark))
        self.reasons: tuple[Unsupported, ...] = ()
        self._boundary = EngineBoundary(self._kept)
        self._handed: SparkInputs | None = None
        self._mixed = False
        self._subplans: list[MaterializedResult] = []
        self._top: ResultStream | None = None
        self._logs: list[EventLog] = []
        self._tag = f"volley-{self.id}"
        self._session = history.session_id(spark)
        self._started = time.perf_counter()
        self._planned = self._captured = self._started

    def native_plan(
        self,
        execution: Java,
        finish: Callable[[Node], Node] = lambda plan: plan,
        subplans: bool = True,
    ) -> Node | SparkPart | None:
        """The plan of a QueryExecution, when all of it can run natively; otherwise None, and the reasons are kept.

        What Spark has to run at the top, over native subplans, is a SparkPart; without `subplans` there are none.
        `finish` adds what Spark's own plan does not have.
        """
        # Spark plans lazily; an error of its own (a view that vanished, say) is raised here as Spark raises it.
        physical = execution.executedPlan()
        self._planned = self._captured = time.perf_counter()
        origins = Origins()
        try:
            plan = finish(capture(self.spark.sparkContext._gateway, physical, origins))
        except CaptureError as error:
            self._fall_back((Unsupported(Reason.CAPTURE, self.action, error.message),))
            return None
        self._captured = time.perf_counter()
        verdict = check(plan)
        if verdict.native:
            return self._portable(plan)
        found = self._mixed_plan(plan, origins, execution, subplans) if self.config.mixed else None
        refusal = (found,) if isinstance(found, Unsupported) else ()
        self._fall_back((*verdict.reasons, *refusal))
        if found is None or isinstance(found, Unsupported):
            return None
        self._mixed = True
        return self._portable_part(found) if isinstance(found, SparkPart) else self._portable(found)

    def _mixed_plan(
        self, plan: Node, origins: Origins, execution: Java, subplans: bool
    ) -> Node | SparkPart | Unsupported | None:
        """The plan, when its top can run natively over rows that Spark gives, or what Spark runs over native rows."""
        subplans = subplans and can_be_read(self.spark.sparkContext, self.config)
        handed = find_spark_inputs(self.spark, plan, origins, subplans)
        if isinstance(handed, tuple):
            land = self._ingest_target if self.config.transport != "local" else None
            self._handed = SparkInputs(handed, self._boundary, land)
            return plan
        part = spark_part(self.spark, execution.optimizedPlan(), plan, origins) if subplans else None
        return part or handed

    def _portable(self, plan: Node) -> Node | None:
        """The plan, when its workers can make everything that it names; otherwise None."""
        try:
            if self.config.transport != "local":
                portable_plan(plan)
            return plan
        except NotPortable as error:
            self._fall_back((Unsupported(Reason.DATA_SOURCE, self.action, error.message),))
            return None

    def _portable_part(self, part: SparkPart) -> SparkPart | None:
        return part if all(self._portable(subplan.node) for subplan in part.subplans) else None

    def native_write(self, command: Java) -> tuple[WriteCommand | None, Node | SparkPart | None]:
        """What a write does and the plan of its rows, when Volley can do both; otherwise the reasons are kept.

        Where only Spark can write them, its rows may still be computed natively.
        """
        try:
            write = read_command(self.spark, command)
        except CaptureError as error:
            self._planned = self._captured = time.perf_counter()
            self._fall_back((Unsupported(Reason.CAPTURE, self.action, error.message),))
            return None, None
        if isinstance(write, WriteCommand):
            return write, self.native_plan(write.rows, lambda plan: laid_out(plan, write))
        self._planned = self._captured = time.perf_counter()
        if write is None:
            self.reasons = (Unsupported(Reason.ACTION, self.action, "there is nothing to write"),)
            return None, None
        self._fall_back((write,))
        return None, self._rows_for_spark(command)

    def _rows_for_spark(self, command: Java) -> SparkPart | None:
        """What is native of the rows that Spark writes."""
        execution = rows_of(self.spark, command)
        if execution is None or not self.config.mixed:
            return None
        if not can_be_read(self.spark.sparkContext, self.config):
            return None
        origins = Origins()
        try:
            plan = capture(self.spark.sparkContext._gateway, execution.executedPlan(), origins)
        except CaptureError:
            return None
        part = spark_part(self.spark, execution.optimizedPlan(), plan, origins)
        if isinstance(part, Unsupported):
            self.reasons = (*self.reasons, part)
        if not isinstance(part, SparkPart):
            return None
        self._mixed = True
        return self._portable_part(part)

    def executed(self, plan: Node | SparkPart) -> ResultStream | SparkRows:
        """Start the plan; what the other engine runs below its top has run when this returns."""
        if isinstance(plan, SparkPart):
            self._subplans.clear()
            return SparkRows(plan.batches(self._boundary))
        filled = self._handed.filled(plan) if self._handed else plan
        given = self._handed.given if self._handed else NOTHING_GIVEN
        self._top = self._start(filled, given)
        return self._top

    def _ingest_target(self) -> IngestTarget:
        """Where Spark's tasks put the rows that the native side reads."""
        shared = _shared_store(self.config)
        transport = _transport(self.config, shared, self.spark)
        query = QueryId.new()
        loop = shared_loop()
        ingest_endpoint = loop.submit(transport.take_in(query)).result(_BEGIN_SECONDS)
        assert ingest_endpoint is not None, "its workers are other processes"
        return IngestTarget(
            query,
            _places(transport),
            _access(self.config, self.spark),
            ingest_endpoint,
            lambda: loop.submit(transport.release(query)),
        )

    def write_by_spark(self, part: SparkPart, command: Java) -> None:
        """Let Spark's writer write the rows of its part, whose subplans are computed now."""
        self._subplans.clear()
        with self._boundary.read_by_spark():
            run_over(self.spark, command, part.logical(self._boundary))

    def _kept(self, subplan: Node, resources: ExitStack) -> tuple[MaterializedResult, Access]:
        """Run a subplan; its rows stay in the stores of its workers, or of this process, which then serves them."""
        config = self.config
        shared = _shared_store(config)
        serving: ServingStore | None = None
        access = _access(config, self.spark)
        if config.transport == "local" and shared is None:
            hosts = driver_hosts(self.spark.sparkContext)
            make = partial(serving_store, config)
            served = Served(*hosts, access.security, config.executor_insecure, make)
            resources.callback(served.close)
            serving = served.store
        transport = _transport(config, shared, self.spark, serving)
        graph = kept(self._graph(subplan, transport), self.spark.sparkContext.defaultParallelism)
        output = self._begun(materialize, graph, transport, shared)
        output.on_cancel(partial(_stop_jobs, self.spark.sparkContext, self._tag))
        self._subplans.append(output)
        return output, access

    @property
    def engine(self) -> Engine:
        """Who answers when it goes well."""
        return "mixed" if self._mixed else "native"

    def tagged(self) -> TaggedJobs:
        """The jobs of Spark that this thread starts for the query."""
        return TaggedJobs(self.spark, self._tag)

    def close(self) -> None:
        self._boundary.close()
        if self._handed:
            self._handed.close()

    def replay(self, error: VolleyError) -> None:
        """Let Spark answer after all, unless the failure is not about the data: then raise it.

        Spark's own error is then the one the user sees, with its class, parameters and place in the SQL text. Where
        Spark does not fail (it may not evaluate what we did), its rows are the right ones.
        """
        if isinstance(
            error,
            QueryCancelled | DeadlineExceeded | FallbackError | ConfigError | SourceError | CommitError,
        ):
            raise error
        if not isinstance(error, DataError):
            if self.config.fallback == "error":
                raise error
            warnings.warn(f"Volley failed and Spark runs the query: {error}", stacklevel=4)
        self.reasons = (Unsupported(Reason.REPLAY, self.action, error.message),)

    def allow_spark(self) -> None:
        """Under fallback=error rows that Spark made after a native failure are refused, too."""
        if self.config.fallback == "error":
            raise FallbackError(
                f"{self.action} had to be replayed on Spark: {'; '.join(map(str, self.reasons))}.",
                hint="Set spark.volley.fallback=allow to accept that.",
            )

    def interrupted(self, error: ResultInterrupted) -> None:
        warnings.warn(f"A worker was lost and the query begins again: {error}", stacklevel=4)

    def finished(self, engine: Engine, rows: int, tasks: int) -> None:
        ended = time.perf_counter()
        logs = [subplan.events for subplan in self._subplans] if engine != "spark" else []
        if self._top is not None and engine != "spark":
            logs.append(self._top.events)
        stages = tuple(stage for events in logs for stage in stage_reports(events))
        report = QueryReport(
            query=str(self.id),
            action=self.action,
            engine=engine,
            reasons=self.reasons,
            seconds=ended - self._started,
            planning_seconds=self._planned - self._started,
            capture_seconds=self._captured - self._planned,
            execution_seconds=ended - self._captured,
            rows=rows,
            spark_tasks=tasks,
            shuffle_bytes=sum(stage.bytes for stage in stages[:-1]),
            stages=stages,
            native_tasks=sum(isinstance(event, TaskStarted) for log in self._logs for event in log.events),
        )
        history.keep(self._session, report)

    def passed_on(self, rows: Iterator[Any], tasks_before: int) -> Iterator[Any]:
        count = 0
        for row in rows:
            count += 1
            yield row
        self.finished("spark", count, spark_tasks(self.spark) - tasks_before)

    def _start(self, plan: Node, given: Mapping[int, Sequence[TaskDone]]) -> ResultStream:
        shared = _shared_store(self.config)
        transport = _transport(self.config, shared, self.spark)
        return self._begun(execute, self._graph(plan, transport), transport, shared, given)

    def _graph(self, plan: Node, transport: Transport) -> StageGraph:
        if self.config.transport != "local":
            plan = portable_plan(plan)
        workers, limits = _places(transport), PlannerLimits.of(self.config)
        if workers == 1:
            return make_stages(plan, 1, limits)
        plan = measure(plan)
        if fits_one_task(plan, limits):
            return alone(make_stages(plan, 1, limits))
        return make_stages(plan, workers, limits)

    def _begun(
        self,
        begin: Callable[[StageGraph, Transport, RunOptions], Running],
        graph: StageGraph,
        transport: Transport,
        shared: SharedStore | None,
        given: Mapping[int, Sequence[TaskDone]] = NOTHING_GIVEN,
    ) -> Running:
        events = EventLog(*progress_listeners(self.config.progress))
        self._logs.append(events)
        token, session = CancellationToken(), self._session
        # Nothing of the token may hold this query, or one that is dropped would go on for ever.
        token.on_fire(lambda: history.ended(session, token))
        try:
            history.started(session, token)
            options = RunOptions(
                token=token,
                timeout_seconds=self.config.timeout_seconds,
                attempts=self.config.task_attempts,
                events=events,
                limits=PlannerLimits.of(self.config),
                absence_seconds=_ABSENCE_SECONDS if shared else 0.0,
                given=given,
            )
            return begin(graph, transport, options)
        except BaseException:
            # An interrupt may fall between the start of the query and the stream that would end it.
            token.cancel("it was interrupted while it started")
            raise

    def _fall_back(self, reasons: tuple[Unsupported, ...]) -> None:
        self.reasons = reasons
        text = "; ".join(str(reason) for reason in reasons)
        if self.config.fallback == "error":
            raise FallbackError(
                f"{self.action} does not run natively: {text}.",
                hint="Set spark.volley.fallback=allow to let Spark run it.",
            )
        if self.config.fallback == "warn":
            warnings.warn(f"Spark runs this {self.action}: {text}", stacklevel=5)


# For a word with the store beside the workers, of whose servers some may be gone.
_BEGIN_SECONDS = 60.0
# What was computed does not go with the workers, so it is worth while to wait for others.
_ABSENCE_SECONDS = 60.0


def _stop_jobs(context: SparkContext, tag: str) -> None:
    """Cancel Spark's jobs, without waiting for that."""
    threading.Thread(
        target=context.cancelJobsWithTag, args=(tag,), name="volley-stop-spark", daemon=True
    ).start()


def _places(transport: Transport) -> int:
    """How many workers there are."""
    return len(transport.workers())


def _shared_store(config: Config) -> SharedStore | None:
    """The store beside the workers; None when exchanged data lives with them."""
    if config.shuffle_store == "memory":
        return None
    return driver_store(ShuffleConfig.of(config), _security(config))


def _security(config: Config) -> Security:
    return Security.read(
        config.token_file, config.tls_ca_file, config.tls_certificate_file, config.tls_key_file
    )


def _access(config: Config, spark: SparkSession) -> Access:
    """How Spark's tasks read what this query keeps for them."""
    files = (config.tls_ca_file, config.tls_certificate_file, config.tls_key_file)
    if config.transport == "spark":
        token = application(spark.sparkContext, config, settings(spark)).security.token
    elif config.transport == "local" and config.shuffle_store == "memory":
        # This process serves them, for this query; on this machine no one else can listen to that.
        token = secrets.token_hex(32)
        files = ("", "", "") if on_this_machine(spark.sparkContext) else files
    else:
        token = _security(config).token
    return Access(token, files, ShuffleConfig.of(config))


def _transport(
    config: Config, shared: SharedStore | None, spark: SparkSession, serving: ServingStore | None = None
) -> Transport:
    """How this query reaches workers; NoWorkers when it reaches none. `serving` is for a local one."""
    if config.transport == "spark":
        return SparkTransport(application(spark.sparkContext, config, settings(spark)), shared)
    if config.transport == "local":
        cores = config.local_cores or available_cores()
        return LocalTransport(config.local_workers, cores, MemoryStore, shared=shared, serving=serving)
    if not config.workers:
        raise ConfigError(
            "spark.volley.transport=flight needs spark.volley.workers.",
            hint="Start some with `volley cluster`.",
        )
    fleet = shared_fleet(config.workers, _security(config), config.worker_timeout_seconds)
    return FlightTransport(fleet, shared=shared)
