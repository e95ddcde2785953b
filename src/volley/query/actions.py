# SPDX-License-Identifier: Apache-2.0
"""The life of a query: from an action on a DataFrame to its answer, natively or on Spark.

    decide -> fallback allowed? -> run natively -> answer
                                        | data is at fault, or the native side failed
                                        v
                                   Spark answers

`volley.last_query` reports every outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from volley.bridge.native_to_spark import SparkPart, SparkRows
from volley.bridge.result import NativeResult
from volley.bridge.write import commit, files_of, open_staging, write_plan
from volley.bridge.write_command import analyze, execution_of, refresh_spark
from volley.coordinator.result import ResultStream
from volley.decide import Decision
from volley.errors import BlockMissing
from volley.formats import STREAMED
from volley.observe.spark_tasks import ApplicationTasks
from volley.plan.jvm import Java
from volley.plan.nodes import FileScan, walk
from volley.plan.subqueries import plans_in
from volley.query.query import Answer, NoTasks, Query
from volley.support.reasons import Reason, Unsupported

Value = TypeVar("Value")
Chunks = Generator[list[Any], None, None]


def run(
    frame: DataFrame,
    action: str,
    *,
    native: Callable[[NativeResult], Value],
    spark: Callable[[], Value],
    holds_result: bool = True,
    observes: bool = True,
) -> Value:
    """Answer an action: `native` makes the answer out of a native result, `spark` asks Spark for it.

    `holds_result`: `native` needs all rows at once anyway. Otherwise it streams them, and losing a worker after the
    first row fails the whole query. `observes`: Spark reads all rows of the frame for this action, and completes the
    observations of `df.observe` with their metrics.
    """
    with Query(frame.sparkSession, action) as query:
        execution = frame._jdf.queryExecution()
        query.stands_for(lambda: execution)
        decision = query.decide(lambda decider: decider.decide(execution, collects=True, observes=observes))
        query.list_in_spark_ui(decision, execution)

        def natively() -> Answer[Value]:
            with query.start(decision, holds_result=holds_result) as batches:
                result = NativeResult(batches, decision.output)
                value = native(result)
            query.observe(decision, execution)
            return Answer(value, result.rows)

        return query.finish(query.try_natively(natively) or query.ask_spark(spark))


def stream(
    frame: DataFrame,
    action: str,
    *,
    native: Callable[[pa.Table], list[Any]],
    spark: Callable[[], Iterator[Any]],
) -> Iterator[Any]:
    """Answer an action row by row, a batch in memory at a time; `native` makes rows out of a batch.

    Once a row was returned, the query cannot be replayed: later failures are raised.
    """
    rows = _stream(frame, action, native, spark)
    # The query begins now, not at the first row. The generator ends it, even if it is dropped unread.
    next(rows)
    return rows


def _stream(
    frame: DataFrame,
    action: str,
    native: Callable[[pa.Table], list[Any]],
    spark: Callable[[], Iterator[Any]],
) -> Generator[Any, None, None]:
    """Yields None when the query has begun, then its rows."""
    # Rows are taken between other work of this thread, so the jobs of the query cannot be told apart by a tag.
    with Query(frame.sparkSession, action, ApplicationTasks) as query:
        execution = frame._jdf.queryExecution()
        query.stands_for(lambda: execution)
        decision = query.decide(lambda decider: decider.decide(execution, subplans=False, collects=True))
        query.list_in_spark_ui(decision, execution)

        def natively() -> Answer[Chunks]:
            batches = query.start(decision)
            # A file that is checked while it is read may be refused late, so all of it is read before the first row.
            taken = list(batches if _reads_checked_files(decision) else islice(batches, 1))
            return Answer(_native_rows(decision, batches, taken, native))

        begun = query.try_natively(natively)
        chunks = begun.value if begun else _one_by_one(query.ask_spark(spark).value)
        rows = 0
        with closing(chunks):
            yield None
            try:
                for chunk in chunks:
                    for row in chunk:
                        rows += 1
                        yield row
            except BlockMissing:
                # Rows are out, so this query cannot begin again. The next one must not look for the same block.
                query.forget_stored_frames()
                raise
        query.finish(Answer(None, rows))


def _native_rows(
    decision: Decision,
    batches: ResultStream | SparkRows,
    taken: list[pa.RecordBatch],
    native: Callable[[pa.Table], list[Any]],
) -> Chunks:
    named = NativeResult(batches, decision.output)
    with closing(batches):
        for batch in chain(taken, named):
            yield native(named.named(batch))


def _reads_checked_files(decision: Decision) -> bool:
    plan = decision.plan
    if plan is None or isinstance(plan, SparkPart):
        return False
    plans = [plan, *plans_in(plan)]
    return any(
        isinstance(node, FileScan) and node.format in STREAMED for part in plans for node in walk(part)
    )


def _one_by_one(rows: Iterator[Any]) -> Chunks:
    for row in rows:
        yield [row]


def write(
    spark: SparkSession, action: str, make_command: Callable[[], Java | None], original: Callable[[], None]
) -> None:
    """Run a logical write command, natively or through `original`; only the latter if there is no command.

    Workers write files that are not visible yet; when all exist, one commit moves them into the table.
    """
    with Query(spark, action) as query:
        made = make_command()
        if made is None:
            _leave(query, f"Spark {spark.version} does not give the command of this write")
            return query.finish(query.ask_spark(original))
        command = analyze(spark, made)
        query.stands_for(lambda: execution_of(spark, command))
        decision = query.decide(lambda decider: decider.decide_write(command))
        if decision.write is not None:
            query.list_in_spark_ui(decision, decision.write.rows)

        def natively() -> Answer[None]:
            if isinstance(decision.plan, SparkPart):
                query.write_by_spark(decision.plan, command)
                return Answer(None)
            return Answer(None, _write_files(query, decision))

        return query.finish(query.try_natively(natively) or query.ask_spark(original))


def _write_files(query: Query, decision: Decision) -> int:
    """Write the rows of a native plan and commit them. Returns their number."""
    write, plan = decision.write, decision.plan
    assert write is not None
    assert plan is not None
    assert not isinstance(plan, SparkPart)
    # The staging directory, with everything that attempts wrote, is removed in any case.
    with open_staging(write) as staging:
        node = write_plan(plan, write, staging)
        with query.start(decision, node, holds_result=True) as batches:
            files = list(files_of(batches))
        query.observe(decision, write.rows, write.command)
        query.committing()
        if write.table is not None:
            write.table.make_way()
        commit(files, node, write, staging)
    refresh_spark(query.spark, write, {file.partition for file in files})
    return sum(file.rows for file in files)


def pass_on(spark: SparkSession, action: str, original: Callable[[], Value]) -> Value:
    """Let Spark run an action that has no native form. `spark.volley.fallback` applies to it too."""
    with Query(spark, action) as query:
        _leave(query, "it has no native form")
        return query.finish(query.ask_spark(original))


def _leave(query: Query, detail: str) -> None:
    """Decide that Spark runs an action."""
    reason = Unsupported(Reason.ACTION, query.action, detail)
    query.decide(lambda decider: Decision("spark", (reason,)))


def record_only(spark: SparkSession, action: str, original: Callable[[], Value]) -> Value:
    """Let Spark run an action of a session on which Volley is off, so that the last report is not an older one."""
    with Query(spark, action, NoTasks) as query:
        query.reasons = (Unsupported(Reason.DISABLED, action, "spark.volley.enabled is false"),)
        return query.finish(query.ask_spark(original))
