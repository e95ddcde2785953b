# SPDX-License-Identifier: Apache-2.0
"""What a query did: where it ran and why, how long each part took, and what moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from volley.events import FeedStatus
from volley.observe.exchanges import ExchangeReport
from volley.support.reasons import Engine, Unsupported

Outcome = Literal["answered", "failed", "cancelled"]


@dataclass(frozen=True)
class OperatorReport:
    """One native operator, summed over the tasks of its stage; metrics as DataFusion names them."""

    name: str
    metrics: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StageReport:
    """`planned_tasks` is what the stage would have had without the real sizes of its inputs; `decisions` is what else
    these changed, in words. A stage whose work its reader did is not among the stages, but in that one's decisions.
    `attempts` above `tasks` means that some ran again, `recomputed_tasks` of them after the stage was complete because
    its output was lost. `workers` is how many were there when the stage began. `taken_over`: it did not run, since an
    earlier run had left its output in the checkpoint. `pruned_files` were left out of its scans because of the keys of
    joins, and `pruned_row_groups` of what was left because of statistics, in files that DataFusion scans itself.

    What went to disk for lack of memory, over all attempts that finished: `operator_spilled_bytes` of what sorts,
    aggregates and joins held, `shuffle_spilled_bytes` of the stage's output. `exchange` is how that output reached the
    stages that read it; None if none did.
    """

    stage: int
    tasks: int
    planned_tasks: int
    attempts: int
    rows: int
    bytes: int
    seconds: float
    operators: tuple[OperatorReport, ...] = ()
    feeds: tuple[FeedStatus, ...] = ()
    operator_spilled_bytes: int = 0
    shuffle_spilled_bytes: int = 0
    decisions: tuple[str, ...] = ()
    workers: int = 0
    recomputed_tasks: int = 0
    exchange: ExchangeReport | None = None
    taken_over: bool = False
    pruned_files: int = 0

    @property
    def pruned_row_groups(self) -> int:
        return sum(dict(operator.metrics).get("pruned_row_groups", 0) for operator in self.operators)

    @property
    def spilled_bytes(self) -> int:
        return self.operator_spilled_bytes + self.shuffle_spilled_bytes


@dataclass(frozen=True)
class ErrorReport:
    """Why an action has no answer: Volley's code, Spark's error condition or else the class, and the message."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


@dataclass(frozen=True)
class QueryReport:
    """What one action did. `seconds` is planning, capture and execution together.

    `engine` is who ran it, or was about to when it failed. `outcome` is failed, or cancelled for an interrupt,
    `volley.cancel` and rows that were not read to their end; `error` then says why. `spark_tasks` is None where Spark
    ran it with Volley off: they are not counted then. `native_tasks` counts every attempt at a native task, those of
    subqueries too, which are no part of `stages`. `jvm_rows` is how many rows native tasks sent to the JVM, for each
    expression that it evaluates, and `jvm_seconds` how long they waited for it, all together. `restarts` is how often
    the whole query began again because a worker was lost; `recomputed_tasks` counts the tasks that ran again although
    their stage was complete.
    """

    query: str
    action: str
    engine: Engine
    reasons: tuple[Unsupported, ...]
    seconds: float
    planning_seconds: float
    capture_seconds: float
    execution_seconds: float
    rows: int
    spark_tasks: int | None
    shuffle_bytes: int = 0
    stages: tuple[StageReport, ...] = ()
    native_tasks: int = 0
    outcome: Outcome = "answered"
    error: ErrorReport | None = None
    jvm_rows: int = 0
    jvm_seconds: float = 0.0
    restarts: int = 0

    @property
    def native(self) -> bool:
        return self.engine == "native"

    @property
    def spilled_bytes(self) -> int:
        """What went to disk for lack of memory, of operators and of exchanged data."""
        return sum(stage.spilled_bytes for stage in self.stages)

    @property
    def recomputed_tasks(self) -> int:
        return sum(stage.recomputed_tasks for stage in self.stages)

    @property
    def taken_over_stages(self) -> int:
        """The stages that did not run because an earlier run had left their output in the checkpoint."""
        return sum(stage.taken_over for stage in self.stages)

    @property
    def pruned_files(self) -> int:
        """The files that were not read because no key of a join selects them."""
        return sum(stage.pruned_files for stage in self.stages)

    @property
    def pruned_row_groups(self) -> int:
        """The row groups that were not read: no filter of the query or key of a join can be true in them."""
        return sum(stage.pruned_row_groups for stage in self.stages)

    @property
    def released_workers(self) -> int:
        """How many fewer workers there were for the last stage than at most before: let go, or lost, between stages."""
        counts = [stage.workers for stage in self.stages]
        return max(counts) - counts[-1] if counts else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {
            "native": self.native,
            "released_workers": self.released_workers,
            "spilled_bytes": self.spilled_bytes,
            "recomputed_tasks": self.recomputed_tasks,
            "taken_over_stages": self.taken_over_stages,
            "pruned_files": self.pruned_files,
            "pruned_row_groups": self.pruned_row_groups,
            "reasons": [
                {"reason": str(item.reason), "what": item.what, "detail": item.detail}
                for item in self.reasons
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.action}: {self.engine}, {self._ended()} {self.seconds:.3f} s "
            f"(Spark's planning {self.planning_seconds:.3f}, capture {self.capture_seconds:.3f}, "
            f"execution {self.execution_seconds:.3f})"
            + (f", {self.spark_tasks} Spark tasks" if self.spark_tasks is not None else "")
            + (f", {self.spilled_bytes:,} bytes spilled" if self.spilled_bytes else "")
            + (f", begun again {self.restarts} times" if self.restarts else "")
            + (f", {self.jvm_rows:,} rows in the JVM for {self.jvm_seconds:.3f} s" if self.jvm_rows else "")
        ]
        if self.error is not None:
            lines.append(f"  {str(self.error).splitlines()[0]}")
        lines += [f"  {reason}" for reason in self.reasons]
        for stage in self.stages:
            lines.append(
                f"  stage {stage.stage}: {stage.tasks} tasks"
                + (f" (planned {stage.planned_tasks})" if stage.tasks != stage.planned_tasks else "")
                + f", {stage.rows:,} rows, {stage.bytes:,} bytes, {stage.seconds:.3f} s"
                + (f", on {stage.workers} workers" if self.released_workers else "")
                + _spilled(stage)
                + (f", {stage.recomputed_tasks} tasks recomputed" if stage.recomputed_tasks else "")
                + (f", {stage.pruned_row_groups} row groups pruned" if stage.pruned_row_groups else "")
            )
            lines += [f"    {feed}" for feed in stage.feeds]
            lines += [f"    {decision}" for decision in stage.decisions]
            if stage.exchange is not None:
                lines.append(f"    {stage.exchange}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<volley.QueryReport {self.query} {str(self).splitlines()[0]}>"

    def _ended(self) -> str:
        return f"{self.rows:,} rows in" if self.outcome == "answered" else f"{self.outcome} after"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{stage.stage}</td><td>{stage.tasks}</td><td>{stage.rows:,}</td>"
            f"<td>{stage.bytes:,}</td><td>{stage.spilled_bytes:,}</td><td>{stage.seconds:.3f}</td>"
            f"<td>{escape('; '.join(stage.decisions))}</td></tr>"
            for stage in self.stages
        )
        why = (*filter(None, (self.error,)), *self.reasons)
        reasons = "".join(f"<li>{escape(str(reason))}</li>" for reason in why)
        head = escape(str(self).splitlines()[0])
        return (
            f"<p><b>{head}</b></p>"
            + (f"<ul>{reasons}</ul>" if reasons else "")
            + "<table><tr><th>stage</th><th>tasks</th><th>rows</th><th>bytes</th><th>spilled</th>"
            + f"<th>seconds</th><th>decided while it ran</th></tr>{rows}</table>"
        )


def _spilled(stage: StageReport) -> str:
    parts = [
        f"{size_bytes:,} of {what}"
        for size_bytes, what in (
            (stage.operator_spilled_bytes, "operators"),
            (stage.shuffle_spilled_bytes, "the exchange"),
        )
        if size_bytes
    ]
    return f", bytes spilled: {' and '.join(parts)}" if parts else ""
