# SPDX-License-Identifier: Apache-2.0
"""Only what data can cause is an error of the data; a defect of the engine is never replayed in silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext

from volley.coordinator.attempts import error_of
from volley.errors import DataError, EngineError, OperatorMemoryExhausted, SpillDiskFull, TaskError
from volley.lower.engine_errors import Fault, fault_of, plain_message
from volley.lower.memory import OperatorMemory
from volley.plan.expressions import Alias, Attribute, Call, Literal
from volley.plan.nodes import Join, JoinKind, Partitioning, Project, Range, StageInput
from volley.plan.types import LONG
from volley.rpc.messages import Failure, InputBlocks, TaskFailure, TaskSpec
from volley.shuffle.memory import MemoryStore
from volley.stages.graph import Output
from volley.testing.contracts import attempt_id, result_task, stage_task
from volley.worker.slots import Slots
from volley.worker.task import failure_of

NUMBER = Attribute(1, "n", LONG)


def _error(sql: str) -> Exception:
    with pytest.raises(Exception) as raised:  # DataFusion has no class of its own
        SessionContext().sql(sql).collect()
    return raised.value


@pytest.mark.parametrize(
    "sql",
    [
        "select 1 / (value - 1) from range(0, 3)",
        "select arrow_cast(value, 'Int8') from range(0, 300)",
        "select cast(a as date) from (values ('x')) t(a)",
        "select arrow_cast(a, 'Decimal128(3, 1)') from (values (100000)) t(a)",
        "select repeat('a', a) from (values (99999999999)) t(a)",
        "select regexp_replace('a', a, 'b') from (values ('(')) t(a)",
        "select (select value from range(0, 3))",
    ],
)
def test_values_that_the_engine_refuses_are_errors_of_the_data(sql: str) -> None:
    assert fault_of(_error(sql)) is Fault.DATA


def test_a_broken_file_is_an_error_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(100_000))}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes(10_000) + whole[11_000:])
    frame = SessionContext().read_parquet(str(path))
    with pytest.raises(Exception) as raised:
        frame.collect()
    assert fault_of(raised.value) is Fault.DATA


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("DataFusion error: Internal error: Failed to downcast", Fault.DEFECT),
        (
            "DataFusion error: Arrow error: Invalid argument error: column types must match schema types",
            Fault.DEFECT,
        ),
        (
            "DataFusion error: Optimizer rule 'x' failed\ncaused by\nInternal error: no such column",
            Fault.DEFECT,
        ),
        ("DataFusion error: This feature is not implemented: x", Fault.DEFECT),
        ("DataFusion error: something nobody has seen", Fault.DEFECT),
        ("DataFusion error: IO error: No space left on device (os error 28)", Fault.DISK),
        ("DataFusion error: Resources exhausted: Failed to allocate", Fault.MEMORY),
        ("DataFusion error: External error: Execution error: bad value", Fault.DATA),
        ("DataFusion error: Parquet error: Parquet error: EOF", Fault.DATA),
    ],
)
def test_what_an_error_is_about(text: str, fault: Fault) -> None:
    assert fault_of(Exception(text)) is fault


def test_errors_of_others_are_not_the_engines() -> None:
    assert fault_of(ValueError("Arrow error: Cast error")) is None
    assert fault_of(DataError("a file is missing")) is None


@pytest.mark.parametrize(
    ("error", "kind", "raised"),
    [
        (Exception("DataFusion error: Internal error: x"), Failure.INTERNAL, EngineError),
        (Exception("DataFusion error: Arrow error: Cast error: x"), Failure.DATA, DataError),
        (Exception("DataFusion error: Resources exhausted: x"), Failure.MEMORY, OperatorMemoryExhausted),
        (Exception("DataFusion error: IO error: x (os error 28)"), Failure.WORKER, TaskError),
        (SpillDiskFull(attempt_id(), (), 1), Failure.WORKER, TaskError),
        (KeyError("x"), Failure.INTERNAL, TaskError),
    ],
)
def test_what_a_task_reports_and_its_client_sees(
    error: Exception, kind: Failure, raised: type[Exception]
) -> None:
    failure = failure_of(attempt_id(), error)
    assert failure.failure is kind
    assert type(error_of(failure)) is raised


def _outcomes(store: MemoryStore, memory: OperatorMemory | None, *tasks: TaskSpec) -> list[TaskFailure]:
    async def story() -> list[TaskFailure]:
        slots = Slots("here", len(tasks), 2, store, memory=memory)
        assert all(slots.reserve(task.attempt) for task in tasks)
        running = [slots.start(task) for task in tasks]
        outcome = await running[-1].done()
        assert isinstance(outcome, TaskFailure), outcome
        await asyncio.gather(*(attempt.cancel() for attempt in running))
        return [outcome]

    return asyncio.run(asyncio.wait_for(story(), 120))


def test_rows_of_another_type_than_was_planned_are_a_defect() -> None:
    store = MemoryStore("here")
    sink = store.sink(attempt_id(), 1)
    sink.write(0, pa.record_batch({"n": pa.array(["not a number"])}))
    blocks = sink.commit()
    task = TaskSpec(attempt_id(stage=9), StageInput(0, (NUMBER,)), None, False, (InputBlocks(0, blocks),))
    (failure,) = _outcomes(store, None, task)
    assert (failure.failure, failure.code) == (Failure.INTERNAL, EngineError.code)


def _too_large() -> Join:
    """Neither its hash table nor a batch for each of its sorts fits into a few hundred kilobytes."""

    def unordered(attribute: Attribute) -> Project:
        plain = Attribute(attribute.id + 10, "n", LONG, False)
        mixed = Call("BitwiseXor", (plain, Literal(0b101010101010101, LONG)), LONG)
        return Project((Alias(attribute.id, attribute.name, mixed),), Range(0, 1_000_000, 1, (plain,)))

    left, right = Attribute(1, "l", LONG, False), Attribute(2, "r", LONG, False)
    return Join(JoinKind.INNER, (left,), (right,), None, None, unordered(left), unordered(right))


def test_memory_that_a_task_had_alone_will_not_suffice_the_next_time(tmp_path: Path) -> None:
    task = stage_task(_too_large(), Output(Partitioning.SINGLE), 0)
    (failure,) = _outcomes(MemoryStore("here"), OperatorMemory(1 << 18, (tmp_path,)), task)
    assert failure.failure is Failure.MEMORY
    assert not failure.failure.may_pass
    assert failure.code == "OPERATOR_MEMORY_EXHAUSTED"


def test_memory_that_others_had_a_part_of_may_suffice_the_next_time(tmp_path: Path) -> None:
    endless = result_task(Range(0, 10**15, 1, (NUMBER,)), task=1)
    task = stage_task(_too_large(), Output(Partitioning.SINGLE), 0)
    (failure,) = _outcomes(MemoryStore("here"), OperatorMemory(1 << 18, (tmp_path,), tasks=2), endless, task)
    assert failure.failure is Failure.WORKER
    assert failure.failure.may_pass


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (
            "[CAST_INVALID_INPUT] The value 'x' is \"malformed\".\n== SQL ==\n",
            "[CAST_INVALID_INPUT] The value 'x' is \"malformed\".",
        ),
        ("it's", "it's"),
    ],
)
def test_the_message_of_a_python_function_is_plain(raised: str, message: str) -> None:
    error = f"PyErr {{ type: <class 'volley.errors.DataError'>, value: DataError({raised!r}), traceback: Some(x) }}"
    assert plain_message(Exception(f"DataFusion error: External error: {error}")) == message
