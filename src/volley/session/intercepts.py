# SPDX-License-Identifier: Apache-2.0
"""Which methods of PySpark are actions, and what Volley does for each.

Those that it answers are `actions.run` or `stream` of a query, those that write are `actions.write` of a command; what
has no native form is passed on to Spark, under `spark.volley.fallback` like all others, and reported.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import _deduplicate_field_names
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
from pyspark.sql.types import (
    ArrayType,
    MapType,
    StructField,
    StructType,
)

from volley.batches import empty_batch
from volley.bridge.attributes import items
from volley.bridge.result import NativeResult
from volley.bridge.rows import to_rows
from volley.bridge.writer_commands import insert_command, save_as_table_command, save_command
from volley.plan.jvm import Java, copy_with
from volley.query import actions
from volley.spark_versions.arrow import arrow_schema, sent_schema
from volley.spark_versions.classic import ClassicDataFrame, local_frame, plan_frame
from volley.spark_versions.registry import current

Original = Callable[..., Any]


def _always(*arguments: Any, **named: Any) -> bool:
    return True


@dataclass(frozen=True)
class Intercept:
    """One method. `answer` is called with the original method and its arguments, for calls that `is_action` accepts."""

    owner: type
    method: str
    action: str
    answer: Callable[..., Any]
    session: Callable[[Any], SparkSession]
    is_action: Callable[..., bool] = _always


# ------------------------------------------------------------------------------------------------ the actions


def _collect(original: Original, frame: DataFrame) -> list[Row]:
    return actions.run(
        frame,
        "collect",
        native=lambda result: _rows(result.table(), frame),
        spark=lambda: original(frame),
    )


def _collect_as_arrow(
    original: Original,
    frame: DataFrame,
    *arguments: Any,
    **named: Any,
) -> list[pa.RecordBatch]:
    called = inspect.signature(original).bind(frame, *arguments, **named)
    called.apply_defaults()
    # Before Spark 4.2 the session says whether types are large; the callers cast to what they want.
    large = bool(called.arguments.get("prefers_large_var_types"))
    # Before Spark 4.0 there is no such argument, and the list is empty.
    empty_list_if_zero_records = bool(called.arguments.get("empty_list_if_zero_records", True))

    def native(result: NativeResult) -> list[pa.RecordBatch]:
        # The schema that Spark's own Arrow has here: toArrow and toPandas build on it.
        schema = sent_schema(frame.schema, prefers_large_types=large)
        batches = list(result.table(schema).to_batches())
        if batches or empty_list_if_zero_records:
            return [batch for batch in batches if batch.num_rows] or batches[:1]
        return [empty_batch(schema)]

    def spark() -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = original(frame, *arguments, **named)
        return batches

    return actions.run(frame, "toArrow", native=native, spark=spark)


def _count(original: Original, frame: DataFrame) -> int:
    return actions.run(
        frame.groupBy().count(),
        "count",
        native=lambda result: int(result.table().column(0)[0].as_py()),
        spark=lambda: int(original(frame)),
    )


def _is_empty(original: Original, frame: DataFrame) -> bool:
    return actions.run(
        frame.select(F.lit(1)).limit(1),
        "isEmpty",
        native=lambda result: not result.table().num_rows,
        spark=lambda: bool(original(frame)),
    )


def _tail(original: Original, frame: DataFrame, num: int) -> list[Row]:
    return actions.run(
        frame,
        "tail",
        native=lambda result: _rows(result.last_rows(num), frame),
        spark=lambda: original(frame, num),
        # `tail` keeps only the last rows, so that the rest need not fit into memory.
        holds_result=False,
        observes=False,
    )


def _to_local_iterator(
    original: Original, frame: DataFrame, prefetchPartitions: bool = False
) -> Iterator[Row]:
    return actions.stream(
        frame,
        "toLocalIterator",
        native=lambda batch: _rows(batch, frame),
        spark=lambda: original(frame, prefetchPartitions),
    )


def show_string(
    original: Original,
    frame: DataFrame,
    n: int = 20,
    truncate: bool | int = True,
    vertical: bool = False,
) -> str:
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        return str(original(frame, n, truncate, vertical))
    return _format(frame, n, lambda shown: str(original(shown, n, truncate, vertical)))


def _repr(original: Original, frame: DataFrame) -> str:
    return _format(frame, _eager_rows(frame), original)


def _repr_html(original: Original, frame: DataFrame) -> str:
    # As the original does: from now on `__repr__` need not evaluate.
    frame._support_repr_html = True
    return _format(frame, _eager_rows(frame), original)


def _format(frame: DataFrame, rows: int, original: Callable[[DataFrame], str]) -> str:
    try:
        columns = frame.columns
    except PySparkException:
        # Python does not know one of the types, such as timestamps of nanoseconds. Spark shows it.
        return actions.pass_on(frame.sparkSession, "show", lambda: original(frame))
    if not columns and not current().keeps_rows_without_columns:
        return actions.pass_on(frame.sparkSession, "show", lambda: original(frame))

    shown = _with_texts(frame)

    def native(result: NativeResult) -> str:
        # Spark formats the few rows itself, as a local relation: no task runs and every type looks as it should.
        schema = _shown_schema(shown)
        return original(local_frame(shown.sparkSession, result.table(arrow_schema(schema)), schema))

    # One more than is shown, so that Spark prints "only showing top n rows".
    wanted = min(rows, _MOST_SHOWN_ROWS) + 1
    return actions.run(shown.limit(wanted), "show", native=native, spark=lambda: original(frame))


def _shown_schema(frame: DataFrame) -> StructType:
    """The schema of rows that only Spark's formatter reads, which shows no names of fields inside of columns."""
    return StructType(
        [
            StructField(field.name, _nullable(_deduplicate_field_names(field.dataType)), True, field.metadata)
            for field in frame.schema
        ]
    )


def _nullable(kind: Any) -> Any:
    """The type with NULLs allowed everywhere: pyarrow refuses a NULL struct of fields that are never NULL."""
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, _nullable(field.dataType), True, field.metadata) for field in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _with_texts(frame: DataFrame) -> DataFrame:
    """The frame with texts for intervals that no Arrow data of Python can hold. Shown, they look the same."""
    held = [type(field.dataType).__name__ in _ONLY_SHOWN for field in frame.schema]
    names = frame.columns
    if not any(held) or len(set(map(str.lower, names))) < len(names):
        return frame
    columns = [F.col(f"`{name.replace('`', '``')}`") for name in names]
    return frame.select(
        *(
            column.cast("string").alias(name) if odd else column
            for name, column, odd in zip(names, columns, held, strict=True)
        )
    )


# By name: PySpark 3.5 does not have the second.
_ONLY_SHOWN = ("YearMonthIntervalType", "CalendarIntervalType")

# Spark shows no more rows than an array of the JVM can hold, also for `show(2**31 - 1)`, which means all of them.
_MOST_SHOWN_ROWS = 2**31 - 17


def _is_eager(frame: DataFrame) -> bool:
    """Whether a notebook evaluates a DataFrame that it shows."""
    return str(frame.sparkSession.conf.get("spark.sql.repl.eagerEval.enabled")).lower() == "true"


def _is_eager_text(frame: DataFrame) -> bool:
    return not frame._support_repr_html and _is_eager(frame)


def _eager_rows(frame: DataFrame) -> int:
    return int(str(frame.sparkSession.conf.get("spark.sql.repl.eagerEval.maxNumRows")))


def _rows(table: pa.Table, frame: DataFrame) -> list[Row]:
    if not current().has_binary_option:
        return to_rows(table, frame.schema)
    binary_as_bytes = str(frame.sparkSession.conf.get(_BINARY_AS_BYTES)).lower() == "true"
    return to_rows(table, frame.schema, binary_as_bytes=binary_as_bytes)


_BINARY_AS_BYTES = "spark.sql.execution.pyspark.binaryAsBytes"


# ------------------------------------------------------------------------------------------------ the writes


def _save(
    original: Original,
    writer: DataFrameWriter,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    **options: Any,
) -> None:
    _configure(writer, format, mode, partitionBy, options)
    _save_to(writer, path, "save", lambda: original(writer, path))


def _save_format(format: str, original: Original, writer: DataFrameWriter, *args: Any, **named: Any) -> None:
    """`csv`, `parquet` and such: `save` with the other arguments as options."""
    arguments = dict(inspect.signature(original).bind(writer, *args, **named).arguments)
    del arguments["self"]
    path = arguments.pop("path")
    mode, partition_by = arguments.pop("mode", None), arguments.pop("partitionBy", None)
    writer._set_opts(**arguments)
    _configure(writer, format, mode, partition_by, {})
    _save_to(writer, path, format, lambda: original(writer, *args, **named))


def _save_to(writer: DataFrameWriter, path: str | None, action: str, original: Callable[[], None]) -> None:
    actions.write(writer._spark, action, lambda: save_command(writer, path), original)


def _insert_into(
    original: Original, writer: DataFrameWriter, tableName: str, overwrite: bool | None = None
) -> None:
    if overwrite is not None:
        writer.mode("overwrite" if overwrite else "append")
    actions.write(
        writer._spark,
        "insertInto",
        lambda: insert_command(writer, tableName),
        lambda: original(writer, tableName),
    )


def _save_as_table(
    original: Original,
    writer: DataFrameWriter,
    name: str,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    **options: Any,
) -> None:
    _configure(writer, format, mode, partitionBy, options)
    actions.write(
        writer._spark,
        "saveAsTable",
        lambda: save_as_table_command(writer, name),
        lambda: original(writer, name),
    )


def _sql(original: Original, spark: SparkSession, sqlQuery: str) -> DataFrame:
    """INSERT, CREATE TABLE AS and CACHE TABLE run at once, not when rows of their DataFrame are requested."""
    command = spark._jsparkSession.sessionState().sqlParser().parsePlan(sqlQuery)
    if _class_of(command) in _CACHING_STATEMENTS and not command.isLazy():
        return _cache_table(spark, command)
    statement = command.child() if _class_of(command) == "UnresolvedWith" else command
    action = _WRITING_STATEMENTS.get(_class_of(statement))
    if action is None:
        return original(spark, sqlQuery)  # type: ignore[no-any-return]
    answers: list[DataFrame] = []
    actions.write(spark, action, lambda: command, lambda: answers.append(original(spark, sqlQuery)))
    return answers[0] if answers else spark.createDataFrame([], StructType([]))


def _cache_table(spark: SparkSession, command: Java) -> DataFrame:
    """Register the frame, as CACHE LAZY TABLE does, and then count its rows: that fills the cache."""
    name_of, place = _CACHING_STATEMENTS[_class_of(command)]
    done = plan_frame(spark, copy_with(command, {place: True}))
    frame = spark.table(name_of(command))
    actions.run(
        frame.groupBy().count(),
        "cacheTable",
        native=lambda result: result.table().num_rows,
        spark=lambda: frame.count(),
    )
    return done


def _quoted(parts: list[str]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


# How the table is named, and the position of `isLazy`.
_CACHING_STATEMENTS: dict[str, tuple[Callable[[Java], str], int]] = {
    "CacheTable": (lambda command: _quoted([str(part) for part in items(command.multipartIdentifier())]), 3),
    "CacheTableAsSelect": (lambda command: _quoted([str(command.tempViewName())]), 4),
}


def _class_of(command: Java) -> str:
    return str(command.getClass().getSimpleName())


def _may_write(spark: SparkSession, sqlQuery: str, args: Any = None, **named: Any) -> bool:
    return args is None and not named and _MAY_WRITE.match(sqlQuery) is not None


def _configure(
    writer: DataFrameWriter,
    format: str | None,
    mode: str | None,
    partition_by: str | list[str] | None,
    options: dict[str, Any],
) -> None:
    writer.mode(mode).options(**options)
    if partition_by is not None:
        writer.partitionBy(partition_by)
    if format is not None:
        writer.format(format)


# Parsing every statement would be too slow. The keyword may follow comments, and INSERT may follow WITH. The comments
# in a lookahead are not tried again in other ways; Python 3.10 has no possessive quantifiers.
_MAY_WRITE = re.compile(
    r"(?=((?:\s|--[^\n]*\n|/\*.*?\*/)*))\1(insert\b|create\s+table\b.*\bas\b|with\b.*\binsert\b|cache\s+table\b)",
    re.IGNORECASE | re.DOTALL,
)
_WRITING_STATEMENTS = {
    "InsertIntoStatement": "insert",
    "InsertIntoDir": "insert",
    "CreateTableAsSelect": "createTable",
}


# ------------------------------------------------------------------------------------------------ the tables


def _frame_action(
    method: str, answer: Callable[..., Any], action: str = "", is_action: Callable[..., bool] = _always
) -> Intercept:
    session = attrgetter("sparkSession")
    return Intercept(ClassicDataFrame, method, action or method, answer, session, is_action)


def _writer_action(method: str, answer: Callable[..., Any]) -> Intercept:
    return Intercept(DataFrameWriter, method, method, answer, attrgetter("_spark"))


def _passed_on(owner: type, method: str, session: str, is_action: Callable[..., bool] = _always) -> Intercept:
    """A method that only Spark performs."""
    session_of = attrgetter(session)

    def answer(original: Original, subject: Any, *arguments: Any, **named: Any) -> Any:
        return actions.pass_on(session_of(subject), method, partial(original, subject, *arguments, **named))

    return Intercept(owner, method, method, answer, session_of, is_action)


def _is_eager_checkpoint(frame: DataFrame, eager: bool = True, *others: Any, **named: Any) -> bool:
    return eager


def _merge_intercepts() -> tuple[Intercept, ...]:
    if not current().has_merge_writer:
        return ()
    from pyspark.sql.merge import MergeIntoWriter

    return (_passed_on(MergeIntoWriter, "merge", "_spark"),)


INTERCEPTS: tuple[Intercept, ...] = (
    _frame_action("collect", _collect),
    _frame_action("_collect_as_arrow", _collect_as_arrow, "toArrow"),
    _frame_action("count", _count),
    _frame_action("isEmpty", _is_empty),
    _frame_action("tail", _tail),
    _frame_action("toLocalIterator", _to_local_iterator),
    _frame_action("_show_string", show_string, "show"),
    _frame_action("__repr__", _repr, "show", _is_eager_text),
    _frame_action("_repr_html_", _repr_html, "show", _is_eager),
    *(
        _passed_on(ClassicDataFrame, method, "sparkSession")
        for method in (
            "foreach",
            "foreachPartition",
            "rdd",
            "toJSON",
            "corr",
            "cov",
            "crosstab",
            "approxQuantile",
        )
    ),
    *(
        _passed_on(ClassicDataFrame, method, "sparkSession", _is_eager_checkpoint)
        for method in ("checkpoint", "localCheckpoint")
    ),
    _writer_action("save", _save),
    _writer_action("insertInto", _insert_into),
    _writer_action("saveAsTable", _save_as_table),
    *(_writer_action(format, partial(_save_format, format)) for format in current().writer_formats),
    _passed_on(DataFrameWriter, "jdbc", "_spark"),
    *(
        _passed_on(DataFrameWriterV2, method, "_spark")
        for method in ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions")
    ),
    *_merge_intercepts(),
    Intercept(SparkSession, "sql", "sql", _sql, lambda spark: spark, _may_write),
)
