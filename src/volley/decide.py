# SPDX-License-Identifier: Apache-2.0
"""Who runs a query: Volley, Volley and Spark together, or Spark alone; and why. Nothing runs yet.

    Spark's QueryExecution, or its command of a write
        -> capture          what Spark planned, as plain data
        -> check            native as a whole?
        -> find a mixture   a native top over rows of Spark, or native parts below what Spark runs
        -> make it portable where workers are other processes
        -> Decision

An action acts on the decision and `volley.explain` prints it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from volley.bridge.frame_scans import MAX_SENT_BYTES, CachedFrames, FrameScans
from volley.bridge.native_to_spark import SparkPart, spark_part
from volley.bridge.spark_to_native import SparkInput, find_spark_inputs, number_inputs
from volley.bridge.write import lay_out
from volley.bridge.write_command import WriteCommand, read_command, rows_of
from volley.config import Config
from volley.deployment.base import Deployment
from volley.errors import CaptureError, EngineError, VolleyError
from volley.jvm.hadoop_files import add_hadoop_store
from volley.jvm.programs import Programs
from volley.jvm.serialized_programs import SerializedPrograms
from volley.lru_cache import LruCache
from volley.plan.capture import Origins, decode_plan, read_plan
from volley.plan.decode_python import PythonAccess
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.known_plans import find_plan, keep_plan
from volley.plan.nodes import Node, Recursion, Unknown
from volley.plan.observed_metrics import ObservedMetrics
from volley.plan.partition_values import depends_on_partitions
from volley.plan.reader import Reading
from volley.plan.recursive_plans import RECURSION, mark_inputs, read_recursion, replace_leaves
from volley.plan.types import is_collected
from volley.signal_handlers import find_interruption
from volley.spark_versions.registry import current
from volley.splits.datasource import NotPortable, make_plan_portable
from volley.support.check import NodeVerdict, Verdict, check
from volley.support.jvm_expressions import delegate_to_jvm
from volley.support.observed import DEPENDS_ON_SPARK, settle_metrics
from volley.support.partitions import place_in_partitions
from volley.support.reasons import Engine, Reason, Unsupported
from volley.support.whole_partitions import aggregate_whole_partitions

# Reasons that are about an expression or an aggregate function, never about an operator.
_OF_EXPRESSIONS = frozenset(
    {Reason.EXPRESSION, Reason.ARGUMENT_VALUE, Reason.CAST, Reason.TIME_ZONE, Reason.AGGREGATE}
)

# Where it is true, Spark counts observed rows as often as it computes them.
_ALL_ATTEMPTS = "spark.sql.legacy.observeMetricsAggregateAllAttempts"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """`plan` is what Volley runs: a native plan, or what Spark runs over native subplans; None when Spark runs it all.

    A native plan of a mixed query reads the rows of `inputs`, which Spark runs, by their position there. If workers are
    other processes, plans contain no references to objects of this one. `nodes` are the verdicts on Spark's plan.
    """

    engine: Engine
    reasons: tuple[Unsupported, ...] = ()
    plan: Node | SparkPart | None = None
    inputs: tuple[SparkInput, ...] = ()
    nodes: tuple[NodeVerdict, ...] = ()
    write: WriteCommand | None = None
    """What a native write does with the rows of `plan`."""
    has_rows: bool = True
    """False for a write that Spark only refuses or skips: `spark.volley.fallback` does not apply to it."""
    programs: Programs | SerializedPrograms | None = None
    """What Spark's own code evaluates inside the plan. The numbers in the plan mean something while this is held."""
    is_kept: bool = False
    """Whether the same query gets this plan again, the same object."""
    is_observed: bool = False
    """Whether `df.observe` asks for metrics."""
    observed: tuple[ObservedMetrics, ...] = ()
    """What computes the metrics, beside the plan."""
    frames: CachedFrames = field(default_factory=CachedFrames, compare=False)
    """The cached frames that the plans read."""
    planning_seconds: float = 0.0
    capture_seconds: float = 0.0

    @property
    def output(self) -> tuple[Attribute, ...]:
        """The columns of what Volley runs."""
        assert self.plan is not None, "Spark runs it"
        return self.plan.output

    @property
    def spark_nodes(self) -> tuple[Node, ...]:
        """The tops of the sub-trees that Spark runs below a native plan."""
        return tuple(item.node for item in self.inputs)

    @property
    def native_nodes(self) -> tuple[Node, ...]:
        """The tops of the sub-trees that run natively below what Spark runs."""
        parts = [self.plan] if isinstance(self.plan, SparkPart) else [item.part for item in self.inputs]
        return tuple(subplan.node for part in parts for subplan in part.subplans)

    @property
    def native_plans(self) -> Iterator[Node]:
        """All plans that run natively."""
        if isinstance(self.plan, SparkPart):
            yield from (subplan.plan for subplan in self.plan.subplans)
        elif self.plan is not None:
            yield self.plan
        yield from (subplan.plan for item in self.inputs for subplan in item.part.subplans)
        yield from (plan for metrics in self.observed for plan in metrics.plans)


@dataclass(frozen=True)
class _Captured:
    plan: Node
    programs: Programs | SerializedPrograms | None
    by_text_alone: bool
    by_plan_alone: bool
    """Whether Spark's plan, read again, gives the same: with cached frames that need not be those of its text."""
    frames: CachedFrames
    observed: tuple[ObservedMetrics, ...] = ()
    problem: str = ""
    """Why workers cannot evaluate what has no native form, if that was asked."""


# Decisions on queries that ran natively as a whole, by the text of Spark's plan, which names its files with their sizes
# and times, by whether the JVM may evaluate expressions, and by whether workers are other processes. Reports, notebooks
# and loops ask the same again, and a short query is mostly planning.
_native_before: LruCache[tuple[str, bool, bool], Decision] = LruCache(128)
_LONGEST_TEXT = 256 * 1024


def _is_worth_keeping(decision: Decision, captured: _Captured, text: str) -> bool:
    if decision.engine != "native" or captured.programs is not None or len(text) > _LONGEST_TEXT:
        return False
    # Spark may generate a new name with a number for each query.
    return not any("#" in attribute.name for attribute in decision.output)


def _not_collected(decision: Decision) -> Unsupported | None:
    """A column of the result that Python has no values for."""
    for column in decision.output if decision.plan is not None else ():
        if not is_collected(column.type):
            return Unsupported(Reason.DATA_TYPE, column.name, str(column.type))
    return None


def _reasons(verdict: Verdict, jvm_problem: str) -> tuple[Unsupported, ...]:
    expressions = [reason.what for reason in verdict.reasons if reason.reason in _OF_EXPRESSIONS]
    if not jvm_problem or not expressions:
        return verdict.reasons
    what = ", ".join(dict.fromkeys(expressions))
    return (*verdict.reasons, Unsupported(Reason.NO_JVM, what, jvm_problem))


def _python_access(deployment: Deployment, sent_limit_bytes: int) -> PythonAccess:
    return PythonAccess(deployment.runs_python, sent_limit_bytes if deployment.is_remote else None)


class Decider:
    """Decides for one session and one deployment. `what` names the action in the reasons that are about all of it.

    Planning counts from `started`, a time of `time.perf_counter`.
    """

    def __init__(
        self, spark: SparkSession, deployment: Deployment, config: Config, *, what: str, started: float
    ) -> None:
        self._spark = spark
        self._gateway = spark.sparkContext._gateway
        self._deployment = deployment
        self._mixed = config.mixed
        self._jvm = config.jvm_expressions == "auto"
        self._sent_limit_bytes = config.python_functions_max_files
        self._keeps_frames = config.cache_memory != 0
        self._what = what
        self._started = started

    def decide(
        self,
        execution: Java,
        *,
        subplans: bool = True,
        collects: bool = False,
        observes: bool = False,
        finish: Callable[[Node], Node] | None = None,
    ) -> Decision:
        """The decision on a QueryExecution. Errors of Spark's own planning are raised as Spark raises them.

        Without `subplans` Spark never runs the top of a query over native parts. With `collects` Python gets its rows,
        and Spark says what it says of types that Python does not have. With `observes` the action reads all rows, and
        gives Spark the metrics of `df.observe`. `finish` adds to the captured plan what Spark's own plan does not have.
        """
        known = find_plan(self._gateway, execution) if finish is None else None
        physical = known or execution.executedPlan()
        planned = time.perf_counter()
        decide = partial(
            self._decide,
            execution,
            planned=planned,
            subplans=subplans,
            collects=collects,
            observes=observes,
            finish=finish,
        )
        try:
            decision = decide(physical, is_known=known is not None)
            if known is not None and decision.engine != "native":
                # Spark runs a plan of its own, which nobody shares.
                decision = decide(execution.executedPlan(), is_known=False)
            return decision
        except CaptureError as error:
            return self._on_spark(self._not_readable(error), planned)
        except (VolleyError, PySparkException, Py4JError):
            raise
        except Exception as error:  # a defect of ours, which must not cost the query
            if find_interruption(error) is not None:
                raise
            defect = EngineError.of_defect(error)
            _log.warning("Volley failed to plan a query, and Spark runs it: %s", defect, exc_info=error)
            return self._on_spark(Unsupported(Reason.FAILED, self._what, defect.message), planned)

    def _decide(
        self,
        execution: Java,
        physical: Java,
        *,
        is_known: bool,
        planned: float,
        subplans: bool,
        collects: bool,
        observes: bool,
        finish: Callable[[Node], Node] | None,
    ) -> Decision:
        """The decision on a plan that Spark made until `planned`. CaptureError if it is not readable."""
        origins = Origins()
        reading = read_plan(self._gateway, physical, execution)
        if reading.is_observed and not (observes and current().completes_observations):
            why = (
                DEPENDS_ON_SPARK
                if not observes
                else f"Spark {current().release} runs observed queries itself"
            )
            return self._on_spark(Unsupported(Reason.OBSERVED, self._what, why), planned)
        key = (reading.text, self._jvm, self._deployment.is_remote)
        decision = _native_before.get(key) if reading.says_all and finish is None else None
        if decision is None:
            captured = self._decode(reading, origins, observes=observes)
        captured_at = time.perf_counter()
        if decision is None:
            plan = captured.plan if finish is None else finish(captured.plan)
            chosen = self._choose(plan, origins, execution, subplans, captured.problem)
            is_kept = (
                finish is None and captured.by_text_alone and _is_worth_keeping(chosen, captured, key[0])
            )
            decision = replace(
                self._with_frames(chosen, captured.frames),
                programs=captured.programs,
                observed=captured.observed,
                is_kept=is_kept,
            )
            if is_kept:
                _native_before.put(key, decision)
        repeats = decision.is_kept or (
            decision.engine == "native" and finish is None and captured.by_plan_alone
        )
        if repeats and not is_known:
            keep_plan(self._gateway, execution)
        if reading.is_observed:
            decision = self._observe(decision)
        if collects and (refusal := _not_collected(decision)) is not None:
            return self._on_spark(refusal, planned)
        return replace(
            self._portable(decision),
            planning_seconds=planned - self._started,
            capture_seconds=captured_at - planned,
        )

    def _observe(self, decision: Decision) -> Decision:
        """The decision on an observed query: Spark knows metrics only of what it runs, so it runs all or nothing."""
        decision = replace(decision, is_observed=True)
        if decision.engine != "mixed":
            return decision
        reason = Unsupported(Reason.OBSERVED, self._what, "a part of the query is not native")
        return replace(
            decision, engine="spark", reasons=(*decision.reasons, reason), plan=None, inputs=(), observed=()
        )

    def decide_write(self, command: Java) -> Decision:
        """The decision on an analyzed command. Where only Spark can write, its rows may still be computed natively."""
        try:
            write = read_command(self._spark, command)
        except CaptureError as error:
            return self._on_spark(self._not_readable(error))
        if isinstance(write, WriteCommand):
            # Where Spark also creates the table, its listeners see another command than this one.
            decision = self.decide(
                write.rows, observes=write.table is None, finish=lambda plan: lay_out(plan, write)
            )
            if decision.engine != "native" and write.files.texts:
                # Nobody but Spark's writer can make the texts.
                return self._decide_rows(command, decision.reasons[0])
            return replace(decision, write=write)
        if write is None:
            nothing = Unsupported(Reason.ACTION, self._what, "there is nothing to write")
            return replace(self._on_spark(nothing), has_rows=False)
        return self._decide_rows(command, write)

    def _decode(
        self,
        reading: Reading,
        origins: Origins,
        frame_scans: FrameScans | None = None,
        *,
        observes: bool = False,
    ) -> _Captured:
        """Spark's plan, with what the JVM evaluates in it, and the cached frames that it reads.

        The plans of frames are decoded with the `frame_scans` of the query. `observes` is as in `decide`.
        """
        python = partial(_python_access, self._deployment, self._sent_limit_bytes)
        # Other processes cannot read with the objects of this JVM.
        add_store = None if self._deployment.is_remote else add_hadoop_store
        decoded = decode_plan(self._gateway, reading, origins, python=python, add_store=add_store)
        frame_scans = frame_scans or self._frame_scans()
        plan = aggregate_whole_partitions(frame_scans.resolve(decoded.plan, origins), origins.replace)
        programs = self._make_programs(origins) if self._jvm else None
        placed = place_in_partitions(plan, self._gateway, origins, programs)
        depends, plan = placed is not plan or depends_on_partitions(plan), placed
        if programs is not None:
            plan = delegate_to_jvm(plan, programs, origins.replace)
        plan, observed = settle_metrics(plan, self._observes_once if observes else None, origins.replace)
        captured = _Captured(
            plan,
            programs or None,
            # The text does not have the partitions.
            decoded.by_text_alone and not depends,
            not programs and not depends,
            frame_scans.frames,
            observed,
            programs.problem if programs is not None else "",
        )
        return self._with_recursions(captured, origins, frame_scans)

    def _observes_once(self) -> bool:
        return current().observes_rows_once and self._spark.conf.get(_ALL_ATTEMPTS, "false") != "true"

    def _make_programs(self, origins: Origins) -> Programs | SerializedPrograms:
        if not self._deployment.is_remote:
            return Programs(self._spark, origins)

        return SerializedPrograms(self._spark, origins, self._deployment.find_jvm_problem)

    def _with_recursions(self, captured: _Captured, origins: Origins, frame_scans: FrameScans) -> _Captured:
        """The plan with the plans of its recursive queries, which the text of Spark's plan does not have."""
        found = False

        def change(node: Node) -> Node:
            nonlocal found
            if not isinstance(node, Unknown) or node.name != RECURSION:
                return node
            found = True
            recursion = self._recursion(node, origins, frame_scans)
            origins.replace(node, recursion)
            return recursion

        plan = replace_leaves(captured.plan, change)
        return replace(captured, plan=plan, by_text_alone=False, by_plan_alone=False) if found else captured

    def _recursion(self, node: Unknown, origins: Origins, frame_scans: FrameScans) -> Node:
        operator = origins.of(node)
        if operator is None:
            return node
        query = read_recursion(self._gateway, operator)
        if isinstance(query, str):
            return replace(node, detail=query)
        try:
            anchor, step = (
                self._decode(read_plan(self._gateway, physical), Origins(), frame_scans)
                for physical in (query.anchor, query.step)
            )
        except CaptureError as error:
            return replace(node, detail=error.message)
        return Recursion(
            query.id,
            node.output,
            anchor.plan,
            mark_inputs(step.plan, query),
            query.limit,
            query.level_limit,
            query.row_limit,
            (anchor.programs, step.programs),
        )

    def _frame_scans(self) -> FrameScans:
        def capture(physical: Java) -> _Captured | None:
            try:
                return self._decode(read_plan(self._gateway, physical), Origins(), scans)
            except CaptureError:
                return None

        scans = FrameScans(
            self._gateway,
            capture,
            through_spark=self._mixed,
            keeps=self._keeps_frames,
            stores=self._deployment.is_remote,
            max_bytes=None if self._deployment.takes_frames else MAX_SENT_BYTES,
        )
        return scans

    def _with_frames(self, decision: Decision, frames: CachedFrames) -> Decision:
        """The decision with its cached frames. Where Spark fills one of them, it has a part in the query."""
        decision = replace(decision, frames=frames)
        if decision.engine != "native" or not frames.read_through_spark(decision.native_plans):
            return decision
        reason = Unsupported(Reason.CACHED_BY_SPARK, self._what, "the next query over it is native")
        return replace(decision, engine="mixed", reasons=(reason,))

    def _choose(
        self, plan: Node, origins: Origins, execution: Java, subplans: bool, jvm_problem: str
    ) -> Decision:
        verdict = check(plan)
        if verdict.native:
            return Decision("native", plan=plan, nodes=verdict.nodes)
        on_spark = Decision("spark", _reasons(verdict, jvm_problem), nodes=verdict.nodes)
        if not self._mixed:
            return on_spark
        subplans = subplans and self._deployment.serves_spark
        inputs = find_spark_inputs(self._spark, plan, origins, subplans)
        if isinstance(inputs, tuple):
            return replace(on_spark, engine="mixed", plan=number_inputs(plan, inputs), inputs=inputs)
        part = spark_part(self._spark, execution.optimizedPlan(), plan, origins) if subplans else None
        if isinstance(part, SparkPart):
            return replace(on_spark, engine="mixed", plan=part)
        refusals = dict.fromkeys(reason for reason in (inputs, part) if reason is not None)
        return replace(on_spark, reasons=(*on_spark.reasons, *refusals))

    def _decide_rows(self, command: Java, reason: Unsupported) -> Decision:
        """The decision on the rows that Spark's writer writes."""
        on_spark = self._on_spark(reason)
        execution = rows_of(self._spark, command)
        if execution is None or not self._mixed or not self._deployment.serves_spark:
            return on_spark
        origins = Origins()
        try:
            reading = read_plan(self._gateway, execution.executedPlan(), execution)
            captured = self._decode(reading, origins)
        except CaptureError:
            return on_spark
        if reading.is_observed:
            return on_spark
        part = spark_part(self._spark, execution.optimizedPlan(), captured.plan, origins)
        if isinstance(part, SparkPart):
            mixed = replace(on_spark, engine="mixed", plan=part, programs=captured.programs)
            return self._portable(replace(mixed, frames=captured.frames))
        return on_spark if part is None else replace(on_spark, reasons=(reason, part))

    def _portable(self, decision: Decision) -> Decision:
        """The decision with plans that workers in other processes can run; Spark's where one of them cannot."""
        if decision.plan is None or not self._deployment.is_remote:
            return decision

        def convert(plan: Node) -> Node:
            return make_plan_portable(plan, lambda: self._deployment.runs_python)

        try:
            inputs = tuple(item.change_plans(convert) for item in decision.inputs)
            if isinstance(decision.plan, SparkPart):
                return replace(decision, plan=decision.plan.change_plans(convert), inputs=inputs)
            observed = tuple(metrics.change_plans(convert) for metrics in decision.observed)
            return replace(decision, plan=convert(decision.plan), inputs=inputs, observed=observed)
        except NotPortable as error:
            reason = Unsupported(Reason.DATA_SOURCE, self._what, error.message)
            return replace(
                decision, engine="spark", reasons=(*decision.reasons, reason), plan=None, inputs=()
            )

    def _on_spark(self, reason: Unsupported, planned: float | None = None) -> Decision:
        seconds = (planned or time.perf_counter()) - self._started
        return Decision("spark", (reason,), planning_seconds=seconds)

    def _not_readable(self, error: CaptureError) -> Unsupported:
        return Unsupported(Reason.CAPTURE, self._what, error.message)
