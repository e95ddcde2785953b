# SPDX-License-Identifier: Apache-2.0
"""One action, step by step: decide, run natively, ask Spark, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from volley.bridge.frame_loader import drop_uncached_frames
from volley.bridge.native_to_spark import SparkPart, SparkRows
from volley.bridge.observed_metrics import complete_observations, compute_metrics, make_execution
from volley.call_site import find_call_site, warn_at_call_site
from volley.config import Config
from volley.coordinator.result import ResultStream
from volley.decide import Decider, Decision
from volley.deployment.factory import choose_deployment
from volley.errors import (
    BlockMissing,
    CheckpointLost,
    CommitError,
    ConfigError,
    DataError,
    DeadlineExceeded,
    EngineError,
    FallbackError,
    NoWorkers,
    OperatorMemoryExhausted,
    QueryCancelled,
    ResultInterrupted,
    SourceError,
    VolleyError,
)
from volley.ids import QueryId
from volley.observe.driver_metrics import driver_metrics
from volley.observe.history_writer import HistoryWriter, history_writer
from volley.observe.query_tracer import QueryTracer, query_tracer
from volley.observe.recorder import QueryRecorder, origin_of
from volley.observe.report import ErrorReport, Outcome, QueryReport
from volley.observe.spark_tasks import TaggedJobs
from volley.observe.spark_ui import Observed, SqlTabEntry, post_end, wants_entry
from volley.plan.jvm import Java
from volley.plan.nodes import Node
from volley.query import session_state
from volley.query.interrupts import job_tag, labels_of
from volley.query.native_run import NativeRun
from volley.session_settings import read_settings
from volley.signal_handlers import find_interruption
from volley.spark_versions.registry import current
from volley.support.reasons import Engine, Reason, Unsupported

Value = TypeVar("Value")

# Failures that a replay on Spark would not fix, or would make worse.
_NOT_REPLAYED = (QueryCancelled, DeadlineExceeded, FallbackError, ConfigError, SourceError, CommitError)


@dataclass(frozen=True)
class Answer(Generic[Value]):
    value: Value
    rows: int = 0


class TaskCounter(Protocol):
    """Counts Spark's tasks from `__enter__` on."""

    def __enter__(self) -> TaskCounter: ...

    def __exit__(self, *raised: Any) -> None: ...

    def tasks(self) -> int | None: ...


class NoTasks:
    """Counts nothing, and does not call Spark."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        pass

    def __enter__(self) -> NoTasks:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass

    def tasks(self) -> None:
        return None


class Query:
    """One action, from its start to its report. Leaving the `with` block frees everything and reports a failure."""

    def __init__(
        self,
        spark: SparkSession,
        action: str,
        counter: Callable[[SparkSession, str], TaskCounter] = TaggedJobs,
    ) -> None:
        self.spark = spark
        self.action = action
        self.id = QueryId.new()
        self.engine: Engine = "spark"
        self.reasons: tuple[Unsupported, ...] = ()
        self._session = session_state.session_id(spark)
        self._tasks = counter(spark, job_tag(self.id))
        self._started = time.perf_counter()
        self._planning_seconds = self._capture_seconds = 0.0
        self._config: Config | None = None
        self._run: NativeRun | None = None
        self._decision: Decision | None = None
        self._restarts = 0
        self._committing = False
        self._reported = False
        self._recorder: QueryRecorder | None = None
        self._tracer: QueryTracer | None = None
        self._entry: SqlTabEntry | None = None
        self._execution: Callable[[], Java] | None = None
        self._observed: Observed | None = None
        self._history: HistoryWriter | None = None
        self._before = session_state.latest(self._session)
        self._held = ExitStack()

    def __enter__(self) -> Query:
        self._held.enter_context(self._tasks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._held.close()
        finally:
            if error is not None and not self._reported:
                self._report_failure(error)

    # ------------------------------------------------------------------------------------------- the steps of a query

    def decide(self, decide: Callable[[Decider], Decision]) -> Decision:
        """Decide which engine runs it. FallbackError if Spark is needed and the session does not allow that."""
        config = self._config = Config.read(read_settings(self.spark))
        deployment = choose_deployment(self.spark, config)
        drop_uncached_frames(self.spark)
        decision = decide(Decider(self.spark, deployment, config, what=self.action, started=self._started))
        self._decision, self.engine, self.reasons = decision, decision.engine, decision.reasons
        self._capture_seconds = decision.capture_seconds
        self._planning_seconds = decision.planning_seconds
        self._record(config, decision)
        self._obey_fallback(decision, config.fallback)
        run = NativeRun(
            self.spark,
            config,
            deployment,
            session=self._session,
            query=self.id,
            labels=labels_of(self.spark) if decision.plan is not None else frozenset(),
            recorder=self._recorder,
            tracer=self._tracer,
            frames=decision.frames,
        )
        self._held.callback(run.close)
        self._run = run
        return decision

    def list_in_spark_ui(self, decision: Decision, execution: Java) -> None:
        """Add a native query to Spark's SQL tab. Spark lists the queries that it runs itself."""
        assert self._config is not None
        if decision.engine == "native" and wants_entry(self.spark, self._config.ui):
            description = f"{self.action} at {find_call_site()}, native by Volley"
            # Spark's UI makes links only to its own pages.
            details = (
                f"Volley query {self.id}\n"
                f"`volley history {self.id}` shows it, and so does the dashboard under #/query/{self.id}"
            )
            self._entry = SqlTabEntry(self.spark, execution, description, details)

    def start(
        self, decision: Decision, plan: Node | None = None, *, holds_result: bool = False
    ) -> ResultStream | SparkRows:
        """Start what Volley runs: the plan of the decision, or `plan` in its place.

        `holds_result`: no row is used before all are there.
        """
        plan_or_part = plan or decision.plan
        assert plan_or_part is not None, "Spark runs it"
        is_kept = decision.is_kept and plan is None
        return self._native_run.start(
            plan_or_part, decision.inputs, is_kept=is_kept, holds_result=holds_result
        )

    def stands_for(self, execution: Callable[[], Java]) -> None:
        """Name Spark's execution of the action, whose observations are completed even if Spark never runs it."""
        self._execution = execution

    def observe(self, decision: Decision, execution: Java, logical: Java | None = None) -> None:
        """Compute what `df.observe` asks for. Spark gets it when the query has ended, as the metrics of `logical`."""
        if not decision.is_observed:
            return
        rows = compute_metrics(decision.observed, self._native_run.run_beside)
        plan = execution.logical() if logical is None else logical
        observed = make_execution(self.spark, execution, plan, decision.observed, rows)
        nanoseconds = int((time.perf_counter() - self._started) * 1e9)
        self._observed = Observed(observed, self.action, nanoseconds)

    def write_by_spark(self, part: SparkPart, command: Java) -> None:
        """Let Spark's writer write rows that are partly native."""
        self._native_run.write_by_spark(part, command)

    def committing(self) -> None:
        """The commit begins: the table changes, so the query must not be restarted."""
        self._committing = True

    def try_natively(self, natively: Callable[[], Answer[Value]]) -> Answer[Value] | None:
        """The native answer; None if Spark has to answer, and may. Raises failures that Spark cannot fix."""
        assert self._config is not None
        if self._decision is None or self._decision.plan is None:
            return None
        tries = self._config.task_attempts
        while True:
            tries -= 1
            try:
                return natively()
            except CheckpointLost as error:
                self._restarts += 1
                self._native_run.renew_checkpoint()
                warn_at_call_site(f"The query begins again without its checkpoint: {error}")
            except ResultInterrupted as error:
                # No row was returned yet, so the received rows are simply dropped.
                if not tries:
                    raise
                self._restarts += 1
                warn_at_call_site(f"A worker was lost and the query begins again: {error}")
            except BlockMissing as error:
                if not tries or not self._native_run.forget_stored_frames():
                    self._leave_to_spark(error, self._config.fallback)
                    return None
                self._restarts += 1
                warn_at_call_site(
                    f"A worker was lost with rows of a cached frame, which are computed again: {error}"
                )
            except OperatorMemoryExhausted as error:
                tries += 1
                if not self._native_run.divide():
                    self._leave_to_spark(error, self._config.fallback)
                    return None
            except VolleyError as error:
                self._leave_to_spark(error, self._config.fallback)
                return None
            except (PySparkException, Py4JError):
                raise  # Spark's own
            except Exception as error:  # a defect of ours, which must not cost the query
                self._leave_to_spark(EngineError.of_defect(error), self._config.fallback)
                return None

    def forget_stored_frames(self) -> None:
        """Drop the cached frames that this query reads from its workers, so that the next query computes them again."""
        self._native_run.forget_stored_frames()

    def ask_spark(self, spark: Callable[[], Value]) -> Answer[Value]:
        """Spark's answer."""
        self.engine = "spark"
        value = spark()
        return Answer(value, _count_rows(value))

    def finish(self, answer: Answer[Value]) -> Value:
        """Report the answer."""
        if self._observed is not None and self.engine == "native":
            complete_observations(self.spark, self._observed.execution)
        self._report("answered", None, answer.rows, self._tasks.tasks())
        return answer.value

    # ------------------------------------------------------------------------------------------- fallback

    def _obey_fallback(self, decision: Decision, fallback: str) -> None:
        if decision.engine == "native" or not decision.has_rows:
            return
        text = "; ".join(map(str, decision.reasons))
        if fallback == "error":
            raise FallbackError(
                f"{self.action} does not run natively: {text}.",
                hint="Set spark.volley.fallback=allow to let Spark run it.",
            )
        if fallback == "warn":
            warn_at_call_site(f"Spark runs this {self.action}: {text}")

    def _leave_to_spark(self, error: VolleyError, fallback: str) -> None:
        """Let Spark answer after a native failure, unless that is not allowed or would not help: then raise.

        Where the data is at fault, Spark's own error is the one the user sees, with its class, parameters and place in
        the SQL text; or Spark does not fail (it may not evaluate what we did), and its rows are the right ones.
        """
        if isinstance(error, _NOT_REPLAYED):
            raise error
        if (interruption := find_interruption(error)) is not None:
            raise interruption
        if self._committing or self._native_run.writer_began:
            # A table may have been changed already.
            raise error
        reason = Unsupported(_why_replayed(error), self.action, error.message)
        if not isinstance(error, DataError):
            if fallback == "error":
                raise error
            warn_at_call_site(f"Volley failed and Spark runs the query: {error}")
        elif fallback == "error":
            raise FallbackError(
                f"{self.action} failed natively and would have to be replayed on Spark: {reason}.",
                hint="Set spark.volley.fallback=allow to let Spark answer, or raise its own error.",
            ) from error
        self.reasons = (reason,)

    # ------------------------------------------------------------------------------------------- the report

    def _record(self, config: Config, decision: Decision) -> None:
        """Begin the query's entry in the history and its trace."""
        started = time.time() - (time.perf_counter() - self._started)
        self._tracer = query_tracer(config, self.id, self.action, started)
        self._history = history_writer(config)
        if self._history is not None:
            origin = origin_of(self.spark, self._session, self.action)
            self._recorder = QueryRecorder(self.id, origin, decision, started)
            self._history.put(self._recorder)

    def _report_failure(self, error: BaseException) -> None:
        abandoned = isinstance(error, GeneratorExit)
        # The iterator was dropped, possibly long ago: the session may have run other queries since.
        is_last = not abandoned or session_state.latest(self._session) is self._before
        cancelled = abandoned or isinstance(error, QueryCancelled | KeyboardInterrupt)
        tasks = None
        # Neither is worth losing the error for.
        with suppress(Exception):
            tasks = self._tasks.tasks()
        with suppress(Exception):
            if self._execution is not None and not abandoned:
                # Who waits for metrics must not wait forever. Spark has already completed those of what it ran.
                complete_observations(self.spark, self._execution())
        self._report("cancelled" if cancelled else "failed", _describe(error), 0, tasks, is_last)

    def _report(
        self,
        outcome: Outcome,
        error: ErrorReport | None,
        rows: int,
        tasks: int | None,
        is_last: bool = True,
    ) -> None:
        seconds = time.perf_counter() - self._started
        run = self._run if self.engine != "spark" else None
        stages = run.stages() if run else ()
        programs = self._decision.programs if run and self._decision else None
        jvm_rows, jvm_seconds = run.jvm_use() if run else (0, 0.0)
        report = QueryReport(
            query=str(self.id),
            action=self.action,
            engine=self.engine,
            reasons=self.reasons,
            seconds=seconds,
            planning_seconds=self._planning_seconds,
            capture_seconds=self._capture_seconds,
            execution_seconds=seconds - self._planning_seconds - self._capture_seconds,
            rows=rows,
            spark_tasks=tasks,
            shuffle_bytes=sum(stage.bytes for stage in stages[:-1]),
            stages=stages,
            native_tasks=self._run.native_tasks() if self._run else 0,
            outcome=outcome,
            error=error,
            restarts=self._restarts,
            jvm_rows=jvm_rows + (programs.rows if programs else 0),
            jvm_seconds=jvm_seconds + (programs.seconds if programs else 0.0),
        )
        self._reported = True
        metrics = driver_metrics(self._config) if self._config is not None else None
        if metrics is not None:
            metrics.observe(report)
        if is_last:
            session_state.keep_report(self._session, report)
        if self._tracer is not None:
            self._tracer.finish(report)
        observed = self._observed if report.engine == "native" and report.error is None else None
        if self._entry is not None:
            replayed = "" if report.engine == "native" else f"replayed on Spark: {report.reasons[0]}"
            self._entry.end(str(report.error) if report.error else replayed or None, observed)
        elif observed is not None:
            post_end(self.spark, observed)
        if self._recorder is not None and self._history is not None:
            self._recorder.finish(report)
            self._history.put(self._recorder)

    @property
    def _native_run(self) -> NativeRun:
        assert self._run is not None, "decide comes first"
        return self._run


def _why_replayed(error: VolleyError) -> Reason:
    if isinstance(error, DataError):
        return Reason.REPLAY
    return Reason.NO_WORKERS if isinstance(error, NoWorkers) else Reason.FAILED


def _describe(error: BaseException) -> ErrorReport:
    if isinstance(error, GeneratorExit):
        return ErrorReport("NOT_READ_TO_THE_END", "the iterator was closed before its last row")
    if isinstance(error, VolleyError):
        return ErrorReport(error.code, error.message)
    code, message = None, str(error)
    if isinstance(error, PySparkException):
        code = getattr(error, current().condition_method)()
    elif isinstance(error, Py4JJavaError):
        # PySpark does not convert every exception of the JVM, and the text of this one is a stack trace.
        with suppress(Exception):
            java = error.java_exception
            code, message = str(java.getClass().getSimpleName()), str(java.getMessage())
            code = _condition(java) or code
    code = code or type(error).__name__
    return ErrorReport(code, message.removeprefix(f"[{code}] "))


def _condition(java: Java) -> str | None:
    """The condition of an exception, or of the one that caused it: the failure of a task is the cause of its job's."""
    while java is not None:
        with suppress(Py4JError):  # not every exception can have a condition
            condition = getattr(java, current().condition_method)()
            if condition:
                return str(condition)
        java = java.getCause()
    return None


def _count_rows(value: object) -> int:
    """The rows of an answer of Spark's: rows, or batches of them."""
    if not isinstance(value, list):
        return 0
    is_arrow = bool(value) and isinstance(value[0], pa.RecordBatch)
    return sum(batch.num_rows for batch in value) if is_arrow else len(value)
