# SPDX-License-Identifier: Apache-2.0
"""`volley.explain`: which engine would run a query, and why. Nothing runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from pyspark.sql import DataFrame

from volley.config import Config, read_explain_spark
from volley.connect.local_server import classic_frame
from volley.decide import Decider
from volley.deployment.factory import choose_deployment
from volley.observe.display import show, show_at_end
from volley.observe.node_text import delegated_names, describe_jvm_expressions, describe_node
from volley.plan.nodes import Node
from volley.session_settings import is_active, read_settings
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits
from volley.support.check import NodeVerdict
from volley.support.reasons import Reason, Unsupported


@dataclass(frozen=True)
class Explanation:
    """Which engine would run a query, with a verdict on each operator of its plan.

    `native` says whether Volley alone runs it, `fraction` is the share of operators that have a native form.
    """

    native: bool
    fraction: float
    reasons: tuple[Unsupported, ...]
    nodes: tuple[NodeVerdict, ...] = ()
    spark_inputs: tuple[int, ...] = ()
    """Positions in `nodes` of the sub-trees that Spark runs for a native plan above them."""
    workers: int = 1
    """How many tasks may share a scan."""
    subplans: tuple[int, ...] = ()
    """Positions in `nodes` of the sub-trees that run natively below what Spark runs."""
    enabled: bool = True
    """Whether Volley is on; if not, Spark runs the query, and the rest says what Volley would do."""
    limits: PlannerLimits = DEFAULT_LIMITS
    """How finely scans are divided."""

    @property
    def jvm_expressions(self) -> tuple[str, ...]:
        """The Catalyst classes of what Spark's own code evaluates in the JVM, inside the native plan."""
        return tuple(dict.fromkeys(name for verdict in self.nodes for name in delegated_names(verdict)))

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._lines()])

    def __repr__(self) -> str:
        return f"<volley.explain: {self._headline()}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<div style="padding-left:{verdict.depth * 1.5}em;color:{_COLOURS[verdict.native]}">'
            + "".join(f"<i>{escape(text)}</i><br>" for text in self._boundary(position))
            + f"{_MARKS[verdict.native]} {escape(describe_node(verdict, self.workers, self.limits))}"
            + "".join(
                f"<br><small>{escape(str(text))}</small>"
                for text in (*describe_jvm_expressions(verdict), *verdict.reasons)
            )
            + "</div>"
            for position, verdict in enumerate(self.nodes)
        )
        others = "".join(
            f"<div><small>{escape(str(reason))}</small></div>" for reason in self._other_reasons()
        )
        return (
            '<details open style="font-family:monospace">'
            f"<summary><b>{escape(self._headline())}</b></summary>{rows}{others}</details>"
        )

    def _ipython_display_(self) -> None:
        show_at_end(self)

    def _headline(self) -> str:
        off = (
            ""
            if self.enabled
            else "Volley is off on this session, so Spark runs this query. With Volley on: "
        )
        if not self.nodes:
            return f"{off}Spark runs this query: {self.reasons[-1]}"
        count = sum(verdict.native for verdict in self.nodes)
        share = f"{count} of {len(self.nodes)} operators ({self.fraction:.0%}) are native"
        if crossings := len(self.spark_inputs) + len(self.subplans):
            share += f", {crossings} hand-overs"
        if not self.enabled:
            return off + share
        if self.native:
            return f"Volley runs this query: {share}"
        return f"{'Volley and Spark run' if crossings else 'Spark runs'} this query: {share}"

    def _boundary(self, position: int) -> Iterator[str]:
        """What stands above an operator where rows are handed over."""
        if position in self.spark_inputs:
            yield "~ hand-over: Spark runs this, and what is below it"
        if position in self.subplans:
            yield "~ hand-over: Volley runs this, and what is below it"

    def _lines(self) -> Iterator[str]:
        for position, verdict in enumerate(self.nodes):
            indent = "  " * verdict.depth
            yield from (indent + text for text in self._boundary(position))
            yield f"{indent}{_MARKS[verdict.native]} {describe_node(verdict, self.workers, self.limits)}"
            yield from (f"{indent}    {text}" for text in describe_jvm_expressions(verdict))
            for reason in verdict.reasons:
                yield f"{indent}    {reason}"
        yield from map(str, self._other_reasons())
        if self.reasons:
            yield "`volley help CODE` says more about a code"

    def _other_reasons(self) -> list[Unsupported]:
        """Reasons about no single operator, such as a native part that is too small."""
        told = {reason for verdict in self.nodes for reason in verdict.reasons}
        return [reason for reason in self.reasons if reason not in told and self.nodes]


_MARKS = {True: "✓", False: "✗"}
# Legible on light and on dark pages.
_COLOURS = {True: "#2b8a3e", False: "#e03131"}


def explain(frame: DataFrame) -> Explanation:
    """Spark's plan with a verdict on each operator. Printed, or shown as HTML in a notebook; nothing runs."""
    explanation = explain_silently(classic_frame(frame))
    show(explanation)
    return explanation


def explain_after_spark(frame: DataFrame) -> None:
    """What `DataFrame.explain()` says at its end, if `spark.volley.explain.spark` is true."""
    if read_explain_spark(str(frame.sparkSession.conf.get("spark.volley.explain.spark", "false"))):
        print(f"== Volley ==\n{explain_silently(frame)}\n")


def explain_silently(frame: DataFrame) -> Explanation:
    """What `explain` shows, of a classic frame."""
    spark = frame.sparkSession
    config = Config.read(read_settings(spark))
    deployment = choose_deployment(spark, config)
    decider = Decider(spark, deployment, config, what="plan", started=time.perf_counter())
    decision = decider.decide(frame._jdf.queryExecution(), observes=True)
    enabled = is_active(spark)
    off = () if enabled else (Unsupported(Reason.DISABLED, "session", "volley.enable(spark) turns it on"),)

    def positions(nodes: Iterable[Node]) -> tuple[int, ...]:
        ids = {id(node) for node in nodes}
        return tuple(number for number, found in enumerate(decision.nodes) if id(found.node) in ids)

    return Explanation(
        native=enabled and decision.engine == "native",
        fraction=sum(node.native for node in decision.nodes) / max(1, len(decision.nodes)),
        reasons=(*off, *decision.reasons),
        nodes=decision.nodes,
        spark_inputs=positions(decision.spark_nodes),
        workers=deployment.planned_workers(),
        subplans=positions(decision.native_nodes),
        enabled=enabled,
        limits=PlannerLimits.of(config),
    )
