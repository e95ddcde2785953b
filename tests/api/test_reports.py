# SPDX-License-Identifier: Apache-2.0
"""The stages of a report, made out of events."""

from __future__ import annotations

from volley.events import OperatorMetrics, StageFinished, StageStarted, TaskFinished, TaskMetrics, TaskStarted
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.observe.report import QueryReport, StageReport
from volley.observe.stage_reports import stage_reports

QUERY = QueryId("q")


def report(*stages: StageReport) -> QueryReport:
    return QueryReport("q", "collect", "native", (), 1.0, 0.1, 0.1, 0.8, 3, 0, stages=stages)


def spilled(size_bytes: int) -> tuple[OperatorMetrics, ...]:
    return (OperatorMetrics("SortExec", (("spilled_bytes", size_bytes),)),)


def test_what_tasks_spilled_is_summed_over_a_stage_and_over_the_query() -> None:
    first, second = StageId(QUERY, 0), StageId(QUERY, 1)
    events = [
        StageStarted(first, 2, 2),
        TaskStarted(AttemptId(TaskId(first, 0), 0), "here"),
        TaskFinished(AttemptId(TaskId(first, 0), 0), TaskMetrics(1, 8, 0.1, spilled(100), 7)),
        TaskFinished(AttemptId(TaskId(first, 1), 0), TaskMetrics(1, 8, 0.1, spilled(20), 0)),
        StageFinished(first, 2, 16, 0.1),
        StageStarted(second, 1, 1),
        TaskFinished(AttemptId(TaskId(second, 0), 0), TaskMetrics(1, 8, 0.1, (), 3000)),
        StageFinished(second, 1, 8, 0.1),
    ]
    stages = stage_reports(events)
    assert [(stage.operator_spilled_bytes, stage.shuffle_spilled_bytes) for stage in stages] == [
        (120, 7),
        (0, 3000),
    ]
    told = report(*stages)
    assert told.spilled_bytes == told.to_dict()["spilled_bytes"] == 3127
    headline, one, other = str(told).splitlines()
    assert headline.endswith("3,127 bytes spilled")
    assert one.endswith("bytes spilled: 120 of operators and 7 of the exchange")
    assert other.endswith("bytes spilled: 3,000 of the exchange")
    assert "<td>127</td>" in told._repr_html_()


def test_nothing_is_said_of_what_was_not_spilled() -> None:
    assert "spilled" not in str(report(StageReport(0, 1, 1, 1, 1, 8, 0.1)))


def test_a_task_counts_what_its_operators_spilled() -> None:
    operators = (
        OperatorMetrics("SortExec", (("spilled_bytes", 5), ("spill_count", 1))),
        OperatorMetrics("AggregateExec", (("spilled_bytes", 6),)),
    )
    assert TaskMetrics(0, 0, 0.0, operators).operator_spilled_bytes == 11


def test_what_was_decided_while_it_ran_is_shown() -> None:
    stage = StageId(QUERY, 2)
    events = [StageStarted(stage, 4, 3, ("stage 1 < stage 0: read whole",)), StageFinished(stage, 1, 8, 0.1)]
    told = report(*stage_reports(events))
    assert str(told).splitlines()[1:] == [
        "  stage 2: 4 tasks (planned 3), 1 rows, 8 bytes, 0.100 s",
        "    stage 1 < stage 0: read whole",
    ]
    assert "stage 1 &lt; stage 0: read whole" in told._repr_html_()
    assert told.to_dict()["stages"][0]["decisions"] == ("stage 1 < stage 0: read whole",)


def test_workers_that_were_let_go_between_stages_are_told() -> None:
    stages = [
        StageReport(number, 3, 3, 3, 1, 8, 0.1, workers=workers) for number, workers in enumerate((3, 1))
    ]
    told = report(*stages)
    assert told.released_workers == told.to_dict()["released_workers"] == 2
    assert [line.rpartition(", ")[2] for line in str(told).splitlines()[1:]] == [
        "on 3 workers",
        "on 1 workers",
    ]
    assert report(stages[0]).released_workers == 0
