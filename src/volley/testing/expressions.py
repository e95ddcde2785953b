# SPDX-License-Identifier: Apache-2.0
"""Compares expressions with Spark, row by row.

Under ANSI one bad row fails the whole query and would hide every other row. Spark therefore evaluates each expression
inside Catalyst's TryEval, which turns a failure into NULL. DataFusion evaluates the expression captured from the same
plan, on fewer and fewer rows until only the bad rows fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datafusion import Expr, SessionContext
from pyspark.sql import DataFrame, SparkSession

from volley.lower.expressions import column_name, lower_expression
from volley.plan.capture import capture
from volley.plan.expressions import Expression, attribute_of, references
from volley.plan.nodes import Project
from volley.plan.types import to_arrow
from volley.spark_versions.classic import collect_table, plan_frame
from volley.support.expressions import check_expression
from volley.support.reasons import Unsupported
from volley.testing.session import conf

_SETTINGS = {
    "spark.volley.enabled": "false",
    # Otherwise Spark would evaluate common subexpressions outside TryEval, and fail.
    "spark.sql.subexpressionElimination.enabled": "false",
}


@dataclass(frozen=True)
class Verdict:
    """How the engines compare on one expression.

    `refusal`: it is not native, so nothing was compared. `alarms`: rows that failed natively but not in Spark, which
    costs time but never a row. `eager`: the rows failed together but not one by one, so something was evaluated on rows
    that it should not see. `wrong`: rows with a different value, or without the failure that Spark has.
    """

    expression: str
    refusal: Unsupported | None = None
    equal: int = 0
    alarms: int = 0
    eager: bool = False
    wrong: tuple[str, ...] = ()


def compare_expressions(
    spark: SparkSession, table: pa.Table, expressions: Sequence[str], directory: Path, *, ansi: bool
) -> list[Verdict]:
    """Evaluate SQL expressions over the columns of `table` in both engines."""
    view = f"expressions_{len(list(directory.iterdir()))}"
    path = str(directory / f"{view}.parquet")
    pq.write_table(table, path)
    with conf(spark, {**_SETTINGS, "spark.sql.ansi.enabled": str(ansi).lower()}):
        spark.read.parquet(path).createOrReplaceTempView(view)
        columns = ", ".join(f"{text} as v{i}" for i, text in enumerate(expressions))
        frame = spark.sql(f"select {columns}, 'value' as name, * from {view}")
        plan = capture(spark.sparkContext._gateway, frame._jdf.queryExecution().executedPlan())
        assert isinstance(plan, Project), f"planned as {plan}"
        expected = collect_table(_try_columns(spark, frame, len(expressions)))
    ids = [column_name(attribute_of(column).id) for column in plan.expressions[len(expressions) + 1 :]]
    native = table.rename_columns(ids)
    return [
        _compare(text, captured, native, expected.column(i))
        for i, (text, captured) in enumerate(zip(expressions, plan.expressions, strict=False))
    ]


def _try_columns(spark: SparkSession, frame: DataFrame, count: int) -> DataFrame:
    """The first `count` columns, each as a struct of its value, or NULL if its evaluation failed.

    The next column is the literal 'value', the name of the struct's field: py4j cannot create a Scala literal.
    """
    jvm = spark._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    # Every name lookup is a call too.
    nullable, named_struct, try_eval = catalyst.KnownNullable, catalyst.CreateNamedStruct, catalyst.TryEval
    plan = frame._jdf.queryExecution().optimizedPlan()
    columns = plan.projectList()
    field_name = columns.apply(count).child()
    wrapped = []
    for i in range(count):
        alias = columns.apply(i)
        # Nullable: otherwise Arrow rejects a NULL struct around a value that is never NULL.
        struct = named_struct(to_seq([field_name, nullable(alias.child())]))
        wrapped.append(alias.withNewChildren(to_seq([try_eval(struct)])))
    attempted = plan.copy(to_seq(wrapped), plan.child())
    return plan_frame(spark, attempted)


def _compare(text: str, captured: Expression, table: pa.Table, attempts: pa.ChunkedArray) -> Verdict:
    refusal = next(iter(check_expression(captured)), None)
    if refusal:
        return Verdict(text, refusal)
    used = {column_name(id) for id in references(captured)}
    assert used <= set(table.column_names), f"{text} is not computed in one projection"
    struct = attempts.combine_chunks()
    failed = struct.is_null().to_pylist()
    theirs = _plain_values(struct.field("value"))
    read = table.select([name for name in table.column_names if name in used])
    ours, together = _evaluate(lower_expression(captured), to_arrow(captured.type), table, read, failed)
    equal = alarms = 0
    wrong: list[str] = []
    for row, (value, spark_failed) in enumerate(zip(ours, failed, strict=True)):
        if value is FAILED:
            alarms += not spark_failed
            equal += spark_failed
        elif spark_failed or value != theirs[row]:
            spark_value = "failed" if spark_failed else repr(theirs[row])
            wrong.append(f"{text} of {_row(table, row)}: Spark {spark_value}, native {value!r}")
        else:
            equal += 1
    eager = not together and all(value is not FAILED for value in ours)
    return Verdict(text, None, equal, alarms, eager, tuple(wrong))


FAILED = object()


def _evaluate(
    expr: Expr, wanted: pa.DataType, table: pa.Table, read: pa.Table, suspects: Sequence[bool]
) -> tuple[list[Any], bool]:
    """The native values, and whether all rows could be evaluated together.

    If not, rows on which Spark failed are evaluated one by one (once for all rows with the same values in the columns
    `read`), and the others together or in smaller and smaller parts.
    """
    together = _compute(expr, wanted, table)
    if together is not None:
        return together, True
    values: list[Any] = [FAILED] * table.num_rows
    others = [row for row, suspect in enumerate(suspects) if not suspect]
    for row, value in zip(
        others, _compute_in_parts(expr, wanted, table.take(pa.array(others, pa.int64()))), strict=True
    ):
        values[row] = value
    alone: dict[tuple[str, ...], Any] = {}
    keys = list(zip(*(_bits(column) for column in read.columns), strict=True)) or [()] * table.num_rows
    for row, suspect in enumerate(suspects):
        if suspect:
            if keys[row] not in alone:
                found = _compute(expr, wanted, table.slice(row, 1))
                alone[keys[row]] = found[0] if found else FAILED
            values[row] = alone[keys[row]]
    return values, False


def _compute_in_parts(expr: Expr, wanted: pa.DataType, table: pa.Table) -> list[Any]:
    """The values of all rows, evaluated in smaller and smaller parts until only bad rows fail."""
    found = _compute(expr, wanted, table)
    if found is not None:
        return found
    if table.num_rows == 1:
        return [FAILED]
    half = table.num_rows // 2
    return _compute_in_parts(expr, wanted, table.slice(0, half)) + _compute_in_parts(
        expr, wanted, table.slice(half)
    )


def _compute(expr: Expr, wanted: pa.DataType, table: pa.Table) -> list[Any] | None:
    """The values of all rows; None if one of them fails."""
    if not table.num_rows:
        return []
    try:
        frame = SessionContext().from_arrow(table)
        column = frame.select(expr.alias("value")).to_arrow_table().column(0).combine_chunks()
    except Exception:  # any failure sends the query to Spark
        return None
    assert column.type == wanted, f"{column.type} in place of {wanted}"
    return _plain_values(column)


def _bits(column: pa.ChunkedArray) -> list[str]:
    """Texts that are equal only if the bits of the values are."""
    values = column.combine_chunks()
    if pa.types.is_floating(values.type):
        values = values.view(pa.int32() if values.type == pa.float32() else pa.int64())
    return [repr(value) for value in _plain_values(values)]


def _plain_values(column: pa.Array) -> list[Any]:
    """Values that compare exactly: floats by their bits with a single NaN, dates and times as integers."""
    if pa.types.is_floating(column.type):
        bits = pa.int32() if column.type == pa.float32() else pa.int64()
        canonical = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
        return list(canonical.view(bits).to_pylist())
    if pa.types.is_date(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_nested(column.type):
        # As texts, in which NaN is itself and zeros have signs.
        return [None if value is None else repr(value) for value in column.to_pylist()]
    return list(column.to_pylist())


def _row(table: pa.Table, row: int) -> list[Any]:
    return [_plain_values(column.slice(row, 1).combine_chunks())[0] for column in table.columns]
