# SPDX-License-Identifier: Apache-2.0
"""The seam with PySpark: which actions of a DataFrame Volley answers, and how it gets to see them.

Every action of a classic DataFrame ends in one of a few methods; those are wrapped once for the whole process.
A wrapper asks whether its session has Volley on, hands the action to `query`, and otherwise steps aside.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.types import StructType

from volley import query
from volley.batches import empty_batch
from volley.bridge.result import NativeResult
from volley.config import PREFIX, Config
from volley.errors import SessionError
from volley.plan.capture import prepare
from volley.plan.local_data import remember
from volley.settings import settings

ENABLED = PREFIX + "enabled"

_lock = threading.Lock()
_originals: dict[str, Callable[..., Any]] = {}


def enable(spark: SparkSession) -> SparkSession:
    """Let Volley answer this session's queries where it can do so exactly. Calling it again changes nothing.

    Raises SessionError for a session that has no plan to read (Spark Connect) and ConfigError for a bad option.
    """
    # Asked of the type, not by isinstance: a checker would take what follows for unreachable.
    if not issubclass(type(spark), SparkSession):
        kind = f"{type(spark).__module__}.{type(spark).__qualname__}"
        hint = "Pass the SparkSession that your program uses."
        if kind.startswith("pyspark.sql.connect."):
            hint = (
                "A Spark Connect session keeps its plan on the server. Use a classic session: "
                "SparkSession.builder.master(...) instead of .remote(...)."
            )
        raise SessionError(f"{kind} is not a classic SparkSession.", hint=hint)
    Config.read(settings(spark))
    _install()
    prepare(spark.sparkContext._gateway)
    spark.conf.set(ENABLED, "true")
    return spark


def disable(spark: SparkSession) -> SparkSession:
    """Give this session's queries back to Spark."""
    spark.conf.set(ENABLED, "false")
    return spark


def _is_enabled(spark: SparkSession) -> bool:
    return str(spark.conf.get(ENABLED, "false")).lower() == "true"


# ------------------------------------------------------------------------------------------ the actions


def _collect(frame: DataFrame) -> list[Row]:
    return query.run(
        frame,
        "collect",
        native=lambda result: _rows(result.table(), frame),
        spark=lambda: _originals["collect"](frame),
    )


def _collect_as_arrow(
    frame: DataFrame,
    split_batches: bool = False,
    empty_list_if_zero_records: bool = True,
    prefers_large_var_types: bool = False,
) -> list[pa.RecordBatch]:
    def native(result: NativeResult) -> list[pa.RecordBatch]:
        # The schema that Spark's own Arrow has here: toArrow and toPandas build on it.
        schema = to_arrow_schema(frame.schema, timezone="UTC", prefers_large_types=prefers_large_var_types)
        batches = list(result.table(schema).to_batches())
        if batches or empty_list_if_zero_records:
            return [batch for batch in batches if batch.num_rows] or batches[:1]
        return [empty_batch(schema)]

    def spark() -> list[pa.RecordBatch]:
        original = _originals["_collect_as_arrow"]
        batches: list[pa.RecordBatch] = original(
            frame, split_batches, empty_list_if_zero_records, prefers_large_var_types
        )
        return batches

    return query.run(frame, "toArrow", native=native, spark=spark)


def _count(frame: DataFrame) -> int:
    counted = frame.groupBy().count()
    return query.run(
        counted,
        "count",
        native=lambda result: int(result.table().column(0)[0].as_py()),
        spark=lambda: int(_originals["count"](frame)),
    )


def _is_empty(frame: DataFrame) -> bool:
    first = frame.select(F.lit(1)).limit(1)
    return query.run(
        first,
        "isEmpty",
        native=lambda result: not result.table().num_rows,
        spark=lambda: bool(_originals["isEmpty"](frame)),
    )


def _tail(frame: DataFrame, num: int) -> list[Row]:
    return query.run(
        frame,
        "tail",
        native=lambda result: _rows(result.last_rows(num), frame),
        spark=lambda: _originals["tail"](frame, num),
    )


def _to_local_iterator(frame: DataFrame, prefetchPartitions: bool = False) -> Iterator[Row]:
    return query.stream(
        frame,
        "toLocalIterator",
        native=lambda batch: _rows(batch, frame),
        spark=lambda: _originals["toLocalIterator"](frame, prefetchPartitions),
    )


def _show_string(frame: DataFrame, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> str:
    original = _originals["_show_string"]

    def native(result: NativeResult) -> str:
        # Spark formats the few rows itself, as a local relation: no task runs and every type looks as it should.
        table = result.table(to_arrow_schema(frame.schema, timezone="UTC"))
        shown = frame.sparkSession.createDataFrame(table, frame.schema)
        return str(original(shown, n, truncate, vertical))

    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        return str(original(frame, n, truncate, vertical))
    return query.run(
        frame.limit(n + 1),
        "show",
        native=native,
        spark=lambda: str(original(frame, n, truncate, vertical)),
    )


_ACTIONS: dict[str, Callable[..., Any]] = {
    "collect": _collect,
    "_collect_as_arrow": _collect_as_arrow,
    "count": _count,
    "isEmpty": _is_empty,
    "tail": _tail,
    "toLocalIterator": _to_local_iterator,
    "_show_string": _show_string,
}


# ------------------------------------------------------------------------------------------- the writes


def _save(
    writer: DataFrameWriter,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    **options: Any,
) -> None:
    _configure(writer, format, mode, partitionBy, options)
    spark = writer._spark
    where = spark._jvm.scala.Option.apply(path)  # type: ignore[union-attr]
    query.write(spark, "save", writer._jwrite.saveCommand(where), lambda: _originals["save"](writer, path))


def _parquet(
    writer: DataFrameWriter,
    path: str,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    compression: str | None = None,
) -> None:
    if compression is not None:
        writer.option("compression", compression)
    _save(writer, path, "parquet", mode, partitionBy)


def _insert_into(writer: DataFrameWriter, tableName: str, overwrite: bool | None = None) -> None:
    if overwrite is not None:
        writer.mode("overwrite" if overwrite else "append")
    command = writer._jwrite.insertIntoCommand(tableName)
    query.write(writer._spark, "insertInto", command, lambda: _originals["insertInto"](writer, tableName))


def _save_as_table(
    writer: DataFrameWriter,
    name: str,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    **options: Any,
) -> None:
    _configure(writer, format, mode, partitionBy, options)
    command = writer._jwrite.saveAsTableCommand(name)
    query.write(writer._spark, "saveAsTable", command, lambda: _originals["saveAsTable"](writer, name))


def _sql(spark: SparkSession, sqlQuery: str, args: Any = None, **named: Any) -> DataFrame:
    """INSERT and CREATE TABLE AS run when they are said, not when their DataFrame is asked for rows."""
    ask = _originals["sql"]
    if args is not None or named or not _MAY_WRITE.match(sqlQuery):
        return ask(spark, sqlQuery, args, **named)  # type: ignore[no-any-return]
    command = spark._jsparkSession.sessionState().sqlParser().parsePlan(sqlQuery)
    action = _WRITING_STATEMENTS.get(str(command.getClass().getSimpleName()))
    if action is None:
        return ask(spark, sqlQuery)  # type: ignore[no-any-return]
    answers: list[DataFrame] = []
    query.write(spark, action, command, lambda: answers.append(ask(spark, sqlQuery)))
    return answers[0] if answers else spark.createDataFrame([], StructType([]))


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


_WRITES: dict[str, Callable[..., None]] = {
    "save": _save,
    "parquet": _parquet,
    "insertInto": _insert_into,
    "saveAsTable": _save_as_table,
}

# Parsing costs too much for every text. Comments may stand before it, and WITH before INSERT.
_MAY_WRITE = re.compile(
    r"(\s|--[^\n]*\n|/\*.*?\*/)*+(insert\b|create\s+table\b.*\bas\b|with\b.*\binsert\b)",
    re.IGNORECASE | re.DOTALL,
)
_WRITING_STATEMENTS = {
    "InsertIntoStatement": "insert",
    "InsertIntoDir": "insert",
    "CreateTableAsSelect": "createTable",
}


def _rows(table: pa.Table, frame: DataFrame) -> list[Row]:
    rows: list[Row] = ArrowTableToRowsConversion.convert(table, frame.schema)
    return rows


def _install() -> None:
    """Wrap the actions, once a process. Sessions without Volley pay one look at their configuration."""
    with _lock:
        if _originals:
            return
        for name, action in _ACTIONS.items():
            original = getattr(ClassicDataFrame, name)
            _originals[name] = original
            setattr(ClassicDataFrame, name, _wrapped(original, action, lambda frame: frame.sparkSession))
        for name, write in _WRITES.items():
            original = getattr(DataFrameWriter, name)
            _originals[name] = original
            setattr(DataFrameWriter, name, _wrapped(original, write, lambda writer: writer._spark))
        _originals["sql"] = SparkSession.sql
        SparkSession.sql = _wrapped(SparkSession.sql, _sql, lambda spark: spark)  # type: ignore[method-assign]
        SparkSession.createDataFrame = _remembering(SparkSession.createDataFrame)  # type: ignore[method-assign]


def _wrapped(
    original: Callable[..., Any], action: Callable[..., Any], session: Callable[[Any], SparkSession]
) -> Callable[..., Any]:
    @wraps(original)
    def answer(subject: Any, *arguments: Any, **named: Any) -> Any:
        chosen = action if _is_enabled(session(subject)) else original
        return chosen(subject, *arguments, **named)

    return answer


def _remembering(create: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Frames of local data are read natively later, so they are told from those of RDDs, whatever is enabled now."""

    @wraps(create)
    def create_and_remember(spark: SparkSession, data: Any, *arguments: Any, **named: Any) -> DataFrame:
        frame = create(spark, data, *arguments, **named)
        if not isinstance(data, RDD):
            remember(spark.sparkContext._gateway, frame._jdf)
        return frame

    return create_and_remember
