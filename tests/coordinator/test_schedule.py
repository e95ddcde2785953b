# SPDX-License-Identifier: Apache-2.0
"""The schedule under thousands of interleavings of finish, fail, lose, retry, LIMIT, roll-back and cancel.

A simulated cluster holds outputs and loses them; the schedule decides. Whatever happens, every attempt that it launches
must have exactly the blocks it wants, of attempts that count, and the result must come from one version of each output.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.schedule_model import HASH, QUERY, WORKERS, Cluster, Plan, drive, spec
from volley.coordinator.actions import Completed, Launch, StageSpec
from volley.coordinator.schedule import Schedule
from volley.errors import BlockMissing, QueryError, ResultInterrupted, TaskError
from volley.events import TaskMetrics
from volley.ids import AttemptId, StageId, TaskId
from volley.plan.nodes import Partitioning
from volley.rpc.messages import Failure, TaskDone, TaskFailure
from volley.stages.graph import Output


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    stages: list[StageSpec] = []
    foreign: set[int] = set()
    growing: set[int] = set()
    count = draw(st.integers(2, 5))
    for number in range(count):
        is_result = number == count - 1
        inputs: tuple[int, ...] = ()
        if number:
            # The last stage reads somebody, and nobody is left unread for long.
            chosen = draw(st.sets(st.integers(0, number - 1), max_size=2))
            inputs = tuple(sorted(chosen | ({number - 1} if is_result or draw(st.booleans()) else set())))
        kind = draw(st.sampled_from(["hash", "hash", "broadcast", "single", "limit"]))
        output: Output | None = {
            "hash": HASH,
            "broadcast": Output(Partitioning.BROADCAST),
            "single": Output(Partitioning.SINGLE),
            "limit": Output(Partitioning.SINGLE, enough_rows=2),
        }[kind]
        tasks = draw(st.sampled_from([1, 2, 2, 3]))
        if any((read := stages[i].output) and read.partitioning is Partitioning.SINGLE for i in inputs):
            tasks = draw(st.integers(1, 2))
        whole = frozenset(i for i in inputs if draw(st.integers(0, 3)) == 0)
        repeatable = kind != "limit" and draw(st.booleans())
        stages.append(spec(number, tasks, inputs, None if is_result else output, repeatable, whole))
        if not inputs and not is_result and draw(st.integers(0, 11)) == 0 and kind != "limit":
            foreign.add(number)
        elif not inputs:
            growing.add(number)
    attempts, holds = draw(st.integers(2, 6)), draw(st.booleans())
    return Plan(tuple(stages), frozenset(foreign), frozenset(growing), attempts, holds)


CHAIN = Plan((spec(0), spec(1, inputs=(0,)), spec(2, inputs=(1,)), spec(3, 1, (2,), None)))


STORIES = {
    "plan": plans(),
    "choices": st.lists(st.integers(0, 2**12), max_size=60),
    "close_at": st.one_of(st.none(), st.none(), st.integers(0, 40)),
}


def check_rows(plan: Plan, choices: list[int], close_at: int | None) -> None:
    cluster = drive(plan, choices, close_at)
    allowed = (ResultInterrupted, BlockMissing, TaskError, QueryError)
    assert cluster.error is None or isinstance(cluster.error, allowed)
    if plan.holds and not cluster.pinned:
        assert not isinstance(cluster.error, ResultInterrupted)


@settings(max_examples=500)
@given(**STORIES)
@example(plan=CHAIN, choices=[], close_at=None)
def test_no_order_of_events_loses_or_doubles_a_row(
    plan: Plan, choices: list[int], close_at: int | None
) -> None:
    check_rows(plan, choices, close_at)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("VOLLEY_SCHEDULES", "10000")))
@given(**STORIES)
def test_no_order_of_many_events_loses_or_doubles_a_row(
    plan: Plan, choices: list[int], close_at: int | None
) -> None:
    check_rows(plan, choices, close_at)


def task_of(number: int, task: int, attempt: int = 0, epoch: int = 0) -> AttemptId:
    return AttemptId(TaskId(StageId(QUERY, number, epoch), task), attempt)


def take(cluster: Cluster, attempt: AttemptId) -> AttemptId:
    """An attempt that runs, about to end with an output."""
    del cluster.running[attempt]
    cluster.done[attempt] = cluster.output_of(attempt)
    return attempt


def test_a_late_report_says_nothing_about_outputs_that_were_made_since() -> None:
    """Both readers find the output of task 0 gone, and the worker that held it had made everything."""
    cluster = Cluster(Plan((spec(0), spec(1, inputs=(0,)), spec(2, 1, (1,), None))))
    schedule = cluster.schedule
    for task in (0, 1):
        cluster.perform(schedule.finish(cluster.output_of(take(cluster, task_of(0, task))), "w0"))
    reports = [
        TaskFailure(take(cluster, task_of(1, task)), Failure.LOST_INPUT, "MISSING", "", task_of(0, 0))
        for task in (0, 1)
    ]
    cluster.perform(schedule.fail(reports[0], "w1", set(WORKERS)))
    cluster.perform(schedule.finish(cluster.output_of(take(cluster, task_of(0, 0, 1))), "w0"))
    assert not schedule.has_all_outputs(0)
    cluster.perform(schedule.fail(reports[1], "w1", set(WORKERS)))
    # The new output of task 0 still counts; that of task 1 is on its way.
    assert list(cluster.running) == [task_of(0, 1, 1)]
    cluster.perform(schedule.finish(cluster.output_of(take(cluster, task_of(0, 1, 1))), "w0"))
    assert list(cluster.running) == [task_of(1, 0, 1), task_of(1, 1, 1)]


def test_what_an_attempt_says_after_its_end_is_ignored() -> None:
    """It was given up with its worker, and reports when another attempt is running: it did its work, or it failed."""
    cluster = Cluster(Plan((spec(0), spec(1, inputs=(0,)), spec(2, 1, (1,), None))))
    first, second = task_of(0, 0), task_of(0, 0, 1)
    late = cluster.output_of(take(cluster, first))
    failure = TaskFailure(first, Failure.WORKER, "LOST", "")
    cluster.perform(cluster.schedule.fail(failure, "w0", set(WORKERS)))
    assert second in cluster.running
    for actions in (cluster.schedule.finish(late, "w0"), cluster.schedule.fail(failure, "w0", set(WORKERS))):
        assert actions == []
    assert cluster.schedule.is_running(second)
    assert not cluster.schedule.is_running(first)


def test_readers_behind_outputs_that_are_lost_as_well_begin_again_too() -> None:
    """Stage 2 has read stage 1, of which nothing is left when stage 0 is lost. It must not read a new one beside."""
    plan = Plan((spec(0, 1, repeatable=False), spec(1, 1, (0,)), spec(2, 2, (1,)), spec(3, 1, (2,), None)))
    cluster = Cluster(plan)
    for attempt in (task_of(0, 0), task_of(1, 0), task_of(2, 0)):
        cluster.finish(attempt)
    cluster.gone |= {task_of(0, 0), task_of(1, 0)}
    cluster.miss(task_of(2, 1))
    cluster.miss(task_of(1, 0, 1))
    assert cluster.epochs == {1: 1, 2: 1}


def test_a_result_that_the_client_has_begun_to_read_does_not_begin_again() -> None:
    plan = Plan((spec(0, repeatable=False), spec(1, 2, (0,), None)))
    cluster = Cluster(plan)
    cluster.finish(task_of(0, 0))
    cluster.finish(task_of(0, 1))
    assert cluster.schedule.is_running(task_of(1, 0))
    cluster.step("deliver", task_of(1, 0))
    cluster.gone.add(task_of(0, 0))
    cluster.miss(task_of(1, 1))
    assert isinstance(cluster.error, ResultInterrupted)
    # What it has ready may not follow.
    assert not cluster.schedule.is_running(task_of(1, 0))
    assert not cluster.running


def test_an_attempt_whose_rows_the_client_has_is_not_tried_again() -> None:
    cluster = Cluster(Plan((spec(0), spec(1, 2, (0,), None))))
    for task in (0, 1):
        cluster.finish(task_of(0, task))
    cluster.step("deliver", task_of(1, 0))
    failure = TaskFailure(take(cluster, task_of(1, 0)), Failure.WORKER, "LOST", "the worker is gone")
    cluster.perform(cluster.schedule.fail(failure, "w0", set(WORKERS)))
    assert isinstance(cluster.error, ResultInterrupted)
    assert not cluster.running


def test_what_a_limit_does_not_need_is_stopped_until_its_rows_are_lost() -> None:
    limit = Output(Partitioning.SINGLE, enough_rows=2)
    cluster = Cluster(Plan((spec(0, 3, output=limit, repeatable=False), spec(1, 1, (0,), None))))
    # Task 2 gives two rows.
    cluster.finish(task_of(0, 2))
    assert cluster.cancelled == [task_of(0, 0), task_of(0, 1)]
    assert list(cluster.running) == [task_of(1, 0)]
    cluster.gone.add(task_of(0, 2))
    cluster.miss(task_of(1, 0))
    assert list(cluster.running) == [task_of(0, 0, 1), task_of(0, 1, 1), task_of(0, 2, 1)]


def test_a_result_in_use_is_not_computed_differently() -> None:
    cluster = Cluster(Plan((spec(0, 1, repeatable=False), spec(1, 1, (0,)), spec(2, 2, (0, 1), None))))
    cluster.finish(task_of(0, 0))
    cluster.finish(task_of(1, 0))
    cluster.read(1)
    cluster.gone.add(task_of(0, 0))
    cluster.miss(task_of(2, 0))
    assert isinstance(cluster.error, ResultInterrupted)


def test_a_lost_result_in_use_that_cannot_be_repeated_is_an_error() -> None:
    cluster = Cluster(Plan((spec(0, 1, repeatable=False), spec(1, 1, (0,)), spec(2, 1, (1,), None))))
    cluster.finish(task_of(0, 0))
    cluster.read(0)
    cluster.gone.add(task_of(0, 0))
    cluster.miss(task_of(1, 0))
    assert isinstance(cluster.error, ResultInterrupted)


def test_when_the_client_has_all_rows_nothing_else_matters() -> None:
    cluster = Cluster(CHAIN)
    drive_to_the_end = iter(lambda: next(iter(cluster.running), None), None)
    for attempt in drive_to_the_end:
        cluster.finish(attempt)
    assert cluster.result in cluster.completed
    assert cluster.schedule.lose(2, set(cluster.done), set()) == []
    assert cluster.schedule.demand(2) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_output_is_held_against_its_worker_and_a_damaged_one_is_not(damaged: bool) -> None:
    cluster = Cluster(Plan((spec(0, 3), spec(1, 1, (0,), None))))
    for task in range(3):
        cluster.perform(cluster.schedule.finish(cluster.output_of(take(cluster, task_of(0, task))), "w0"))
    reader = take(cluster, task_of(1, 0))
    failure = TaskFailure(reader, Failure.LOST_INPUT, "MISSING", "", task_of(0, 1), damaged)
    cluster.perform(cluster.schedule.fail(failure, "w1", set(WORKERS)))
    assert {attempt.task.task for attempt in cluster.running} == ({1} if damaged else {0, 1, 2})


def test_an_output_may_name_the_copy_of_an_attempt_that_wrote_it() -> None:
    """Spark runs copies of an attempt: blocks carry the copy's number, and the attempt that was launched has ended."""
    schedule = Schedule(QUERY, 3)
    begun = schedule.begin(spec(0, 1))
    assert [action.attempt for action in begun if isinstance(action, Launch)] == [task_of(0, 0)]
    copy = TaskDone(task_of(0, 0, 103), (), TaskMetrics(1, 8, 0.0))
    schedule.finish(copy, "w0")
    assert not schedule.has_all_outputs(0)
    (completed,) = schedule.finish(copy, "w0", task_of(0, 0))
    assert schedule.has_all_outputs(0)
    # The rows that it sent came under the name of the attempt that was launched.
    assert isinstance(completed, Completed)
    assert completed.launched == (task_of(0, 0),)
